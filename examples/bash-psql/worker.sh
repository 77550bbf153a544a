#!/usr/bin/env bash
# A worker: claims letters, prints them page by page, and sends each exactly once.
#
#     DATABASE_URL=postgresql://localhost/shop ./worker.sh mailer-1
set -euo pipefail
name=$1
stopping=
trap 'stopping=yes' TERM
complaint=$(mktemp)
trap 'rm -f "$complaint"' EXIT

# Runs a statement, in which :id or :'error' stands for a variable of psql: those given as name=value. What it prints
# is in $answer. A SIGTERM for all processes, as a supervisor sends it, does not end psql in the middle of a statement.
sql() {
    answer=$(trap '' TERM; exec psql -XqAt -v ON_ERROR_STOP=1 -v VERBOSITY=verbose "${@:2}" "$DATABASE_URL" <<< "$1") && return
    [ $? = 143 ] && sql "$@" # The signal came before psql was started.
}

handle() {
    local lease=(-v "id=$1" -v "token=$2") payload=(-v "payload=$3") pages page
    sql "SELECT coalesce((:'payload'::jsonb ->> 'pages')::int, 1)" "${payload[@]}" || return
    pages=$answer
    for ((page = 1; page <= pages; page++)); do
        sleep 0.02 # The work, a piece at a time.
        sql "SELECT cancel_requested FROM queue.extend(:id, :token, progress => jsonb_build_object('page', $page))" \
            "${lease[@]}" || return
        if [ "$answer" = t ]; then
            sql "SELECT queue.confirm_cancel(:id, :token)" "${lease[@]}"
            return
        elif [ "$stopping" ]; then
            sql "SELECT queue.release(:id, :token)" "${lease[@]}"
            return
        fi
    done
    # What the work writes commits together with the task, or not at all.
    sql "BEGIN;
         INSERT INTO letters_sent (address) VALUES (:'payload'::jsonb ->> 'to');
         SELECT queue.complete(:id, :token);
         COMMIT" "${lease[@]}" "${payload[@]}"
}

report() {
    sql "SELECT queue.fail(:id, :token, :'error')" -v "id=$1" -v "token=$2" -v "error=$(< "$complaint")" \
        2> "$complaint" && return
    cat "$complaint" >&2
    [[ $(< "$complaint") = *QX00[13]* ]] # Another worker has the task, or has finished it.
}

until [ "$stopping" ]; do
    sql "SELECT id, token, payload FROM queue.claim(worker => :'name')" -v "name=$name"
    if [ -z "$answer" ]; then
        sql "CALL queue.wait(timeout => '1 second')"
        continue
    fi
    # The payload comes last, and may have a | in it.
    IFS='|' read -r id token payload <<< "$answer"
    handle "$id" "$token" "$payload" 2> "$complaint" || report "$id" "$token"
done
