# The driver of a Bash context. It is told over descriptor 3 and lives in no file; see context.rs for the words.
# The line is moved away from 3, which scripts like to use. What the shell begins with as stdin is where the code of each run is
# written, so that it needs no room in any file.
command exec 61<&0 63<&3 3>&- 0</dev/null 1>/dev/null 2>/dev/null
builtin unset s
__glass_busy= __glass_ran= __glass_leaving= __glass_exec= __glass_status=0 __glass_ended=0 __glass_flags= __glass_traps= __glass_zero=0

# What Bash tells of what it does (-x, -v), and how it does it (-a, -e, -u, -T), is the code's affair, and is kept from one run to
# the next beside these lines. Whatever runs before this has done so, or has to, is told to nobody.
__glass_aside() {
    __glass_flags=$-
    builtin set +aeuvxT
}

# Leaves the code from wherever it is, without leaving the shell. A trap may return from what it finds running, and it runs before
# the next command does, whatever that is, and before that opens any file. It asks for itself again, and so finds the next one that
# is to be left. That has to be SIGWINCH: of all signals, this one's trap is not run within itself, and does not wake what waits.
__glass_leave() {
    __glass_status=$1 __glass_leaving=1
    builtin trap '{ [[ ${#BASH_SOURCE[@]} -eq 0 ]] || { builtin kill -WINCH "$$"; builtin return; }; } >/dev/null 2>&1' WINCH
    builtin kill -WINCH "$$"
}
# Before 5.2, a trap that returns is taken to be running for ever. There, each simple command becomes a return.
if (( BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 502 )); then
    __glass_leave() {
        __glass_status=$1 __glass_leaving=1
        builtin set -T
        builtin shopt -s extdebug
        builtin trap '__glass_return' DEBUG
    }
    __glass_return() {
        # The driver itself is in no function, and in no file that was sourced.
        [[ -n $__glass_leaving && ${#FUNCNAME[@]} -gt 1 ]] && builtin return 2
        builtin return 0
    }
fi
__glass_interrupted() { { __glass_aside; __glass_leave 130; } >/dev/null 2>&1; }
exit() {
    { builtin local code=$? sign= number; __glass_aside; } >/dev/null 2>&1
    # A subshell ends as ever.
    if [[ $BASHPID != "$$" || -z $__glass_busy ]]; then builtin exit "${1:-$code}"; fi
    number=${1:-$code}
    case $number in -*) sign=-; number=${number#-} ;; +*) number=${number#+} ;; esac
    case $number in
        ''|*[!0-9]*)
            builtin printf 'bash: exit: %s: numeric argument required\n' "$1" >&2
            code=2 ;;
        # Not by the octal digits that a zero in front would make of it.
        *) code=$(( ${sign}10#$number & 255 )) ;;
    esac
    __glass_leave "$code"
}
__glass_as_before() { builtin return "$__glass_status"; }

# A text, so that it can be begun again: `break` in the code, outside of any loop of its own, leaves this one. A shell that does
# nothing any more (`set -n`, or a trap that has every command left out) does not begin it again, and ends.
__glass_drive='
until {
    builtin trap -p DEBUG ERR >|/proc/self/fd/62
    builtin trap - DEBUG ERR WINCH
    [[ -n $__glass_leaving ]] || { __glass_flags=$- __glass_status=$__glass_ended; }
    builtin trap : INT
    builtin set +aeuvxT
    builtin export -n __glass_ended __glass_flags __glass_leaving __glass_status
    builtin false
} >/dev/null 2>&1; do
    if [[ -n $__glass_exec ]]; then
        __glass_busy=
        IFS= builtin read -rd "" __glass_traps </proc/self/fd/62
        if [[ $__glass_traps = *__glass_return* ]]; then
            __glass_traps=${__glass_traps#*__glass_return?\ DEBUG}
            builtin shopt -u extdebug
        fi
        command exec 0</dev/null 1>/dev/null 2>/dev/null 62<&-
        builtin printf "done %s %s\n" "$__glass_exec" "$__glass_status" >&63
    fi
    until IFS=" " builtin read -r -u 63 __glass_word __glass_exec __glass_fed __glass_dir __glass_whole; do
        (( $? > 128 )) || builtin exit 0
    done
    # As when the code has taken away the descriptors that this needs.
    command exec 62<&61 1>"$__glass_dir/1" 2>"$__glass_dir/2" || {
        builtin printf "broken its driver cannot open what a run needs\n" >&63
        __glass_exec=
        continue
    }
    if [[ $__glass_fed = 1 ]]; then command exec 0<"$__glass_dir/0"; fi
    if [[ -n $__glass_whole ]]; then builtin eval "$__glass_be_a_program"; fi
    builtin trap __glass_interrupted INT
    __glass_flags=${__glass_flags//[!aeuvxT]/} __glass_busy=1 __glass_ran=1 __glass_leaving= __glass_ended=0
    builtin printf "begun %s\n" "$__glass_exec" >&63
    if [[ $__glass_flags = *x* || -n $__glass_traps ]]; then
        # In the file that is sourced, for neither of these is of any use or to be seen before that. The code finds the end of what
        # asked for it as its first $?, so that ends as the run before did.
        builtin trap "{ builtin trap - WINCH; builtin set -h\$__glass_flags; builtin eval \"\$__glass_traps\"; } >/dev/null 2>&1" WINCH
        builtin . "/proc/self/fd/62${__glass_zero#0$(builtin kill -WINCH "$$"; builtin exit "$__glass_status")}"
    else
        [[ $__glass_flags != *e* ]] || __glass_status=0
        builtin set "-h$__glass_flags"
        __glass_as_before "$BASH"
        builtin . /proc/self/fd/62
    fi
    { __glass_ended=$?; } >/dev/null 2>&1
done
builtin eval "$__glass_drive"
'
# It ends the shell with itself, and with what it has left to be done then.
__glass_be_a_program='
builtin trap - INT
builtin printf "begun %s\n" "$__glass_exec" >&63
[[ -n $__glass_ran ]] || exec "$BASH" /proc/self/fd/62
builtin unset -f exit
# Where it can be said what a program is called, it is called what it is read from, as one in a file is.
BASH_ARGV0=/proc/self/fd/62
builtin . /proc/self/fd/62
builtin exit
'
builtin printf 'hello %s\n' "$BASH_VERSION" >&63
builtin eval "$__glass_drive"
