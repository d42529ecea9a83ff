# The driver of a Bash context. It is told over descriptor 3 and lives in no file; see context.rs for the words.
# The line is moved away from 3, which scripts like to use.
exec 63<&3 3>&-
__glass_code=
__glass_leaving=

# Leaves the code from wherever it is, without leaving the shell: every command from now on is a return.
__glass_leave() {
    __glass_code=$1
    __glass_leaving=1
    set -T
    shopt -s extdebug
    trap '__glass_return' DEBUG
}
__glass_return() {
    # The driver itself is in no function, and in no file that was sourced.
    [ -n "$__glass_leaving" ] && [ "${#FUNCNAME[@]}" -gt 1 ] && return 2
    return 0
}
exit() {
    local code=$?
    # A subshell ends as ever.
    if [ "$BASHPID" != "$$" ] || [ -z "$__glass_busy" ]; then builtin exit "${1:-$code}"; fi
    __glass_leave "$(( ${1:-$code} & 255 ))"
}

exec 0</dev/null 1>/dev/null 2>/dev/null
printf 'hello %s\n' "$BASH_VERSION" >&63
while :; do
    __glass_busy=
    IFS=' ' read -r -u 63 __glass_word __glass_exec __glass_fed __glass_dir __glass_whole || { [ "$?" -gt 128 ] && continue; builtin exit 0; }
    exec 62<"$__glass_dir/code" 1>"$__glass_dir/1" 2>"$__glass_dir/2"
    if [ "$__glass_fed" = 1 ]; then exec 0<"$__glass_dir/0"; fi
    if [ -n "$__glass_whole" ]; then
        # A program: it ends the shell with itself, and with what it has left to be done then.
        unset -f exit
        trap - INT
        # Where it can be said what a program is called, it is called what it is read from, as one in a file is.
        BASH_ARGV0=/proc/self/fd/62
        printf 'begun %s\n' "$__glass_exec" >&63
        . /proc/self/fd/62
        exit
    fi
    trap '__glass_leave 130' INT
    __glass_busy=1
    printf 'begun %s\n' "$__glass_exec" >&63
    . /proc/self/fd/62
    __glass_status=$? __glass_busy=
    trap : INT
    if [ -n "$__glass_leaving" ]; then
        __glass_leaving=
        trap - DEBUG
        shopt -u extdebug
        set +T
        __glass_status=$__glass_code
    fi
    exec 0</dev/null 1>/dev/null 2>/dev/null 62<&-
    printf 'done %s %s\n' "$__glass_exec" "$__glass_status" >&63
done
