# SPDX-License-Identifier: Apache-2.0
# bash completion for cistern(1), which knows the commands and options from their help

# The names in the JSON of the command $@. They may be another user's, and "compgen -W" expands words such as "$(...)": names with other
# characters are not offered.
_cistern_names() {
    cistern "$@" --json 2>/dev/null | sed -nE 's/^ *"name": "([A-Za-z0-9._/-]+)",?$/\1/p'
}

# The words of "no preset" list them.
_cistern_presets() {
    cistern plan preset: 2>&1 | sed -n "s/.*there are //p" | tr -d ,
}

_cistern_schedules() {
    cistern schedule '' --stages 1 --micro-batches 1 2>&1 | sed -n "s/.*there are //p" | tr -d ,
}

_cistern_commands() {
    cistern help 2>/dev/null | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | uniq
}

# The second words of the commands that begin with $1.
_cistern_seconds() {
    cistern help 2>/dev/null | sed -n "/^Commands:/,/^$/s/^  $1 \([a-z][a-z]*\) .*/\1/p"
}

# Fill in the caller's arrays: per option of the commands $@ the name of its value and its description.
_cistern_options() {
    local line command form='^  (-.,)? +(--[a-z-]+)(\[=| )([A-Z|]*)\]? +(.*)$'

    for command; do
        while IFS= read -r line; do
            if [[ $line =~ $form ]]; then
                value[${BASH_REMATCH[2]}]=${BASH_REMATCH[4]}
                help[${BASH_REMATCH[2]}]=${BASH_REMATCH[5]}
                [[ -z ${BASH_REMATCH[1]} ]] || value[${BASH_REMATCH[1]%,}]=${BASH_REMATCH[4]}
                # The value of "--watch[=SECONDS]" is not the next word.
                [[ ${BASH_REMATCH[3]} != '[=' ]] || value[${BASH_REMATCH[2]}]=
            fi
        done < <(cistern help "$command" 2>/dev/null)
    done
}

# Complete $cur, the value of option $1.
_cistern_value() {
    local words=

    case ${value[$1]} in
        FILE | PATH | DIR*) mapfile -t COMPREPLY < <(compgen -f -- "$cur") && return ;;
        NAME | FORMAT | WHEN) words=$(tr -d , <<<"${help[$1]/ (default)/}") ;;
        SIZE) [[ ${help[$1]} != *auto* ]] || words=auto ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}

_cistern() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    local i word commands command='' first='' n_args=0 common=()
    local -A value=() help=()

    COMPREPLY=()
    commands=$(_cistern_commands)
    # shellcheck disable=SC2086 # words
    _cistern_options $commands
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        # "--socket=PATH" comes in three words.
        [[ ${COMP_WORDS[i + 1]} != = ]] || ((i++))
        case $word in
            -s | --socket | --manager-socket) common+=("$word" "${COMP_WORDS[i + 1]}") ;;&
            -*) [[ -z ${value[$word]-} && ${COMP_WORDS[i]} != = ]] || ((i++)) ;;
            preset) if [[ ${COMP_WORDS[i + 1]} == : ]]; then ((i++)); else ((n_args++)); fi ;;
            *) if [[ -z $command ]]; then command=$word; else ((n_args++)) || first=$word; fi ;;
        esac
    done
    [[ $prev != = ]] || prev=${COMP_WORDS[COMP_CWORD - 2]}
    [[ $cur != = ]] || cur=
    if [[ $prev == -* && -n ${value[$prev]-} ]]; then
        _cistern_value "$prev"
    elif [[ $cur == -* ]]; then
        [[ -z $command ]] || { help=() && _cistern_options "$command"; }
        mapfile -t COMPREPLY < <(compgen -W "${!help[*]}" -- "$cur" | sort)
    elif [[ -z $command || ($n_args -eq 0 && $command == help) ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$cur")
    elif [[ $n_args -eq 0 && $command == plan ]]; then
        # Bash hands "preset:NAME" over in three words, of which the last one is completed.
        if [[ $prev == : || $cur == : ]]; then
            mapfile -t COMPREPLY < <(compgen -W "$(_cistern_presets)" -- "${cur#:}")
        else
            mapfile -t COMPREPLY < <(compgen -W preset: -f -- "$cur")
            [[ ${COMPREPLY[*]} != preset: ]] || compopt -o nospace 2>/dev/null
        fi
    elif [[ $n_args -eq 0 && $command == schedule ]]; then
        mapfile -t COMPREPLY < <(compgen -W "check $(_cistern_schedules)" -- "$cur")
    elif [[ $n_args -eq 1 && $command == schedule ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    elif [[ $n_args -eq 0 && $command =~ ^(job|tensors|explain|reader|rm|trace|report|save|clone|pause|resume)$ ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_cistern_names "${common[@]}" jobs)" -- "$cur")
    elif [[ $n_args -eq 0 && $command == node ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_cistern_seconds node)" -- "$cur")
    elif [[ $n_args -eq 1 && $command == node && $first =~ ^(drop|drain)$ ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_cistern_names "${common[@]}" node list)" -- "$cur")
    elif [[ $n_args -eq 1 && $command == node && $first == key ]]; then
        mapfile -t COMPREPLY < <(compgen -d -- "$cur")
    elif [[ $n_args -eq 1 && $command == explain ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_cistern_names "${common[@]}" tensors "$first")" -- "$cur")
    elif [[ ($n_args -eq 1 && $command == save) || ($n_args -ge 1 && $command == clone) || $command =~ ^(load|checkpoints|adopt)$ ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
}

complete -F _cistern cistern
