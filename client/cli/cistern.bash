# SPDX-License-Identifier: Apache-2.0
# bash completion for cistern(1)

_cistern_jobs() {
    cistern "$@" jobs --json 2>/dev/null | sed -n 's/^ *"name": "\([A-Za-z0-9._-]*\)",\{0,1\}$/\1/p'
}

# The words of "no preset" list them.
_cistern_presets() {
    cistern plan preset: 2>&1 | sed -n "s/.*there are //p" | tr -d ,
}

_cistern() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    local commands='stat jobs job explain trace rm quota ping plan probe version help'
    local i word command='' n_args=0 common=()

    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        # "--socket=PATH" comes in three words.
        [[ ${COMP_WORDS[i + 1]} != = ]] || ((i++))
        case $word in
            -s | --socket)
                common=(--socket "${COMP_WORDS[i + 1]}")
                ((i++))
                ;;
            --manager-socket | --uid | -c | --count | -o | --output | --disk) ((i++)) ;;
            --device | --host | --ranks | --micro-batches | --batch | --context | --rates | --on | --flops | --share | --timeline | --save) ((i++)) ;;
            --optimizer | --moments | --overlap | --device-update | --device-states) ((i++)) ;;
            --watch) [[ ${COMP_WORDS[i]} != = ]] || ((i++)) ;;
            -*) ;;
            preset) if [[ ${COMP_WORDS[i + 1]} == : ]]; then ((i++)); else ((n_args++)); fi ;;
            *) if [[ -z $command ]]; then command=$word; else ((n_args++)); fi ;;
        esac
    done
    [[ $prev != = ]] || prev=${COMP_WORDS[COMP_CWORD - 2]}
    [[ $cur != = ]] || cur=
    case $prev in
        -s | --socket | --manager-socket | -o | --output | --disk | --rates | --timeline | --save)
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            return
            ;;
        --uid | -c | --count | --device | --host | --ranks | --micro-batches | --batch | --context | --on | --flops | --share) return ;;
        --device-update | --device-states) mapfile -t COMPREPLY < <(compgen -W 'auto' -- "$cur") && return ;;
        --optimizer) mapfile -t COMPREPLY < <(compgen -W 'adamw adam lion sgd' -- "$cur") && return ;;
        --moments) mapfile -t COMPREPLY < <(compgen -W 'fp32 bf16 mx8' -- "$cur") && return ;;
        --overlap) mapfile -t COMPREPLY < <(compgen -W 'commit early delayed' -- "$cur") && return ;;
    esac
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(cistern help ${command:+"$command"} 2>/dev/null | grep -oE -- '--[a-z-]+' | sort -u)" -- "$cur")
    elif [[ -z $command ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$cur")
    elif [[ $n_args -eq 0 && $command == help ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$cur")
    elif [[ $n_args -eq 0 && $command == plan ]]; then
        # Bash hands "preset:NAME" over in three words, of which the last one is completed.
        if [[ $prev == : || $cur == : ]]; then
            mapfile -t COMPREPLY < <(compgen -W "$(_cistern_presets)" -- "${cur#:}")
        else
            mapfile -t COMPREPLY < <(compgen -W preset: -f -- "$cur")
            [[ ${COMPREPLY[*]} != preset: ]] || compopt -o nospace 2>/dev/null
        fi
    elif [[ $n_args -eq 0 && ($command == job || $command == explain || $command == rm || $command == trace) ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_cistern_jobs "${common[@]}")" -- "$cur")
    fi
}

complete -F _cistern cistern
