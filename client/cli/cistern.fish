# SPDX-License-Identifier: Apache-2.0
# fish completion for cistern(1), which knows the commands and options from their help

function __cistern_commands
    cistern help 2>/dev/null | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | uniq
end

# The second words of the commands that begin with $argv.
function __cistern_seconds
    cistern help 2>/dev/null | sed -n "/^Commands:/,/^\$/s/^  $argv \([a-z]*\) .*/\1/p"
end

# The options of command $argv, or those of all commands: "--option NAME-OF-ITS-VALUE".
function __cistern_options
    cistern help $argv 2>/dev/null | sed -nE 's/^  (-.,)? +(--[a-z-]+)(\[=[A-Z|]*\]| ([A-Z|]*)) +.*$/\2 \4/p'
end

# The words of the command line before the cursor: the command, and after it its arguments.
function __cistern_words
    set -l commands (__cistern_commands)
    set -l words (commandline -opc)[2..-1]
    set -l command
    for word in $words
        contains -- $word $commands; and set command $word; and break
    end
    set -l valued -s (__cistern_options $command | string replace -rf '^(--\S+) \S+$' '$1')
    set -l skip
    set -l found
    for word in $words
        if test -n "$skip"
            set skip
        else if string match -q -- '-*' $word
            contains -- $word $valued; and set skip 1
        else
            set found $found $word
        end
    end
    string join \n -- $found
    test -n "$skip" # The word at the cursor is the value of an option.
end

# True if the words before the cursor are one of the commands $argv[2..-1], and $argv[1] arguments.
function __cistern_at
    set -l words (__cistern_words)
    and return 1
    test (count $words) -eq (math $argv[1] + 1); and contains -- $words[1] $argv[2..-1]
end

# The options that name the daemon.
function __cistern_sockets
    set -l words (commandline -opc)
    for option in -s --socket --manager-socket
        set -l at (contains -i -- $option $words)
        and string join \n -- $option $words[(math $at + 1)]
    end
    string match -r -- '^--(?:manager-)?socket=.*' $words
    true
end

# The names of jobs, or of tensors, in the JSON of the command $argv.
function __cistern_names
    cistern (__cistern_sockets) $argv --json 2>/dev/null | sed -n 's/^ *"name": "\([^"]*\)",\{0,1\}$/\1/p'
end

# The names that an error of the command $argv lists.
function __cistern_listed
    cistern $argv 2>&1 | sed -n 's/.*there are //p' | string split ', '
end

complete -c cistern -f
complete -c cistern -n 'test (count (__cistern_words)) -eq 0' -a '(__cistern_commands)'
complete -c cistern -n '__cistern_at 0 help' -a '(__cistern_commands)'
complete -c cistern -n 'string match -q -- "-*" (commandline -ct)' -a '(__cistern_options (__cistern_words)[1] | string replace " " \t)'
complete -c cistern -n '__cistern_words >/dev/null' -F
complete -c cistern -n '__cistern_at 0 job tensors explain reader rm trace report save clone pause resume' -a '(__cistern_names jobs)'
complete -c cistern -n '__cistern_at 0 node' -a '(__cistern_seconds node)'
complete -c cistern -n '__cistern_at 1 node; and contains -- (__cistern_words)[2] drop drain' -a '(__cistern_names node list)'
complete -c cistern -n '__cistern_at 1 node; and contains -- key (__cistern_words)' -F
complete -c cistern -n '__cistern_at 1 explain' -a '(__cistern_names tensors (__cistern_words)[2])'
complete -c cistern -n '__cistern_at 0 plan' -F -a 'preset:(__cistern_listed plan preset:)'
complete -c cistern -n '__cistern_at 0 schedule' -a 'check (__cistern_listed schedule "" --stages 1 --micro-batches 1)'
complete -c cistern -n '__cistern_at 1 save clone schedule' -F
complete -c cistern -n '__cistern_at 0 load checkpoints adopt; or __cistern_at 1 adopt' -F
complete -c cistern -n 'contains -- run (__cistern_words)' -F
