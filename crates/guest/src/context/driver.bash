# The driver of a Bash context. It is told over descriptor 3 and lives in no file; see context.rs for the words.
# The line is moved away from 3, which scripts like to use.
command exec 63<&3 3>&-
__glass_code=
__glass_leaving=

# Leaves the code from wherever it is, without leaving the shell: every command from now on is a return.
__glass_leave() {
    __glass_code=$1
    __glass_leaving=1
    builtin set -T
    builtin shopt -s extdebug
    builtin trap '__glass_return' DEBUG
}
__glass_return() {
    # The driver itself is in no function, and in no file that was sourced.
    [ -n "$__glass_leaving" ] && [ "${#FUNCNAME[@]}" -gt 1 ] && return 2
    return 0
}
exit() {
    local code=$? sign= number
    # A subshell ends as ever.
    if [ "$BASHPID" != "$$" ] || [ -z "$__glass_busy" ]; then builtin exit "${1:-$code}"; fi
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

command exec 0</dev/null 1>/dev/null 2>/dev/null
builtin printf 'hello %s\n' "$BASH_VERSION" >&63
while :; do
    __glass_busy=
    IFS=' ' builtin read -r -u 63 __glass_word __glass_exec __glass_fed __glass_dir __glass_whole || { [ "$?" -gt 128 ] && continue; builtin exit 0; }
    command exec 62<"$__glass_dir/code" 1>"$__glass_dir/1" 2>"$__glass_dir/2"
    if [ "$__glass_fed" = 1 ]; then command exec 0<"$__glass_dir/0"; fi
    if [ -n "$__glass_whole" ]; then
        # A program: it ends the shell with itself, and with what it has left to be done then.
        builtin unset -f exit
        builtin trap - INT
        # Where it can be said what a program is called, it is called what it is read from, as one in a file is.
        BASH_ARGV0=/proc/self/fd/62
        builtin printf 'begun %s\n' "$__glass_exec" >&63
        builtin . /proc/self/fd/62
        builtin exit
    fi
    builtin trap '__glass_leave 130' INT
    __glass_busy=1
    builtin printf 'begun %s\n' "$__glass_exec" >&63
    builtin . /proc/self/fd/62
    __glass_status=$? __glass_busy=
    builtin trap : INT
    if [ -n "$__glass_leaving" ]; then
        __glass_leaving=
        builtin trap - DEBUG
        builtin shopt -u extdebug
        builtin set +T
        __glass_status=$__glass_code
    fi
    command exec 0</dev/null 1>/dev/null 2>/dev/null 62<&-
    builtin printf 'done %s %s\n' "$__glass_exec" "$__glass_status" >&63
done
