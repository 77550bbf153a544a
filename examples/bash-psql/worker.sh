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

# Runs a statement, in which :id or :'error' stands for a variable of psql: those given as name=value.
sql() {
    psql -XqAt -v ON_ERROR_STOP=1 -v VERBOSITY=verbose "${@:2}" "$DATABASE_URL" <<< "$1"
}

handle() {
    local lease=(-v "id=$1" -v "token=$2") pages page cancel
    pages=$(sql "SELECT coalesce(((queue.get(:id)).payload ->> 'pages')::int, 1)" "${lease[@]}") || return
    for ((page = 1; page <= pages; page++)); do
        sleep 0.02 # The work, a piece at a time.
        cancel=$(sql "SELECT cancel_requested FROM queue.extend(:id, :token, progress => jsonb_build_object('page', $page))" \
            "${lease[@]}") || return
        if [ "$cancel" = t ]; then
            sql "SELECT queue.cancelled(:id, :token)" "${lease[@]}"
            return
        elif [ "$stopping" ]; then
            sql "SELECT queue.release(:id, :token)" "${lease[@]}"
            return
        fi
    done
    # What the work writes commits together with the task, or not at all.
    sql "BEGIN;
         INSERT INTO letters_sent (address) SELECT (queue.get(:id)).payload ->> 'to';
         SELECT queue.complete(:id, :token);
         COMMIT" "${lease[@]}"
}

report() {
    sql "SELECT queue.fail(:id, :token, :'error')" -v "id=$1" -v "token=$2" -v "error=$(< "$complaint")" \
        > /dev/null 2> "$complaint" || grep -q QX001 "$complaint" # The lease is lost: somebody else has the task now.
}

until [ "$stopping" ]; do
    task=$(sql "SELECT id, token FROM queue.claim(worker => :'name')" -v "name=$name")
    if [ -z "$task" ]; then
        sql "CALL queue.wait(timeout => '1 second')" > /dev/null
        continue
    fi
    handle "${task%|*}" "${task#*|}" > /dev/null 2> "$complaint" || report "${task%|*}" "${task#*|}"
done
