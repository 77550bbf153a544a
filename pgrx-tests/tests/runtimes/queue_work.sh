#!/usr/bin/env bash
# The program of the contract of all runtimes, for `queue work`: bash queue_work.sh starts the worker, which starts this file
# again for each task. Needs queue and psql in PATH, and DATABASE_URL, QUEUE, CONCURRENCY, LEASE, HEARTBEAT, SHUTDOWN (seconds)
# and NAME.
set -euo pipefail

if [ -z "${QUEUE_TASK_ID:-}" ]; then
	# The process becomes the worker, so that signals reach it.
	exec queue work "$QUEUE" --concurrency "$CONCURRENCY" ${LEASE:+--lease "${LEASE}s"} --heartbeat "${HEARTBEAT:-10}s" \
		--shutdown-timeout "${SHUTDOWN:-30}s" --kill-after "${KILL_AFTER:-2}s" --name "$NAME" --result json -- bash "$0" \
		2> >(while IFS= read -r line; do [[ $line != *" info  ready "* ]] || echo ready; printf '%s\n' "$line" >&2; done)
fi

payload=$(cat)
attempt="$QUEUE_TASK_ID, $QUEUE_TASK_TOKEN"
sql() { psql "$DATABASE_URL" -XqAt -v ON_ERROR_STOP=1 "$@"; }
record() { sql -c "INSERT INTO effects (task, token, what) VALUES ($attempt, '$1')"; }
# The payloads are flat objects of numbers.
number() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" <<< "$payload"; }
# A signal does not tell the reason, but the server does: a request to cancel is recorded, and a lost lease is refused.
reason() {
	local answer
	answer=$(sql -c "SELECT CASE WHEN cancel_requested THEN 'cancelled' ELSE 'shutdown' END FROM queue.extend($attempt)" 2> /dev/null) || answer=lost
	echo "${answer:-lost}"
}
stopped() { kill "$sleeping" 2> /dev/null || true; record "stopped: $(reason)"; exit 143; }

case ${QUEUE_TASK_KIND:-} in
	effect)
		sql --single-transaction -c "INSERT INTO effects (task, token, what) VALUES ($attempt, 'effect')" \
			-c "SELECT queue.complete($attempt, '{\"ok\": true}')" > /dev/null ;;
	lock)
		sql --single-transaction -c "SELECT queue.step($attempt, 'locks', 'true'), pg_sleep($(number seconds))" \
			-c "INSERT INTO effects (task, token, what) VALUES ($attempt, 'effect')" -c "SELECT queue.complete($attempt)" > /dev/null ;;
	plain) printf '{"n": %s}' "$(number n)" ;;
	sleep)
		# Before the command is asked to stop, so that no signal is missed.
		sleeping=; trap stopped TERM
		record begun
		sleep "$(number seconds)" & sleeping=$!
		wait "$sleeping"
		trap - TERM
		record ended ;;
	stubborn | block)
		# A signal that is ignored is ignored by the sleep, too.
		trap '' TERM
		record begun
		sleep "$(number seconds)"
		record ended ;;
	raise) echo boom >&2; exit 1 ;;
	retry)
		# fail ends the task here; what the worker reports afterwards is refused.
		[ "$QUEUE_TASK_ATTEMPT" != 1 ] || sql -c "SELECT queue.fail($attempt, 'later', make_interval(secs => $(number seconds)))" > /dev/null ;;
	discard) echo never >&2; exit 65 ;;
	snooze)
		if [ "$(sql -c "SELECT count(*) FROM effects WHERE task = $QUEUE_TASK_ID AND what = 'snoozed'")" = 0 ]; then
			record snoozed
			sql -c "SELECT queue.release($attempt, make_interval(secs => $(number seconds)))" > /dev/null
		fi ;;
	die) kill -KILL $PPID ;;
	stale)
		sql > /dev/null <<- SQL
			BEGIN;
			INSERT INTO effects (task, token, what) VALUES ($attempt, 'stale');
			\\! psql "\$DATABASE_URL" -XqAt -c "SELECT queue.end_lease($QUEUE_TASK_ID)" > /dev/null
			SELECT queue.complete($attempt);
			COMMIT;
		SQL
		;;
	*) echo "no handler for kind ${QUEUE_TASK_KIND:-null}" >&2; exit 1 ;;
esac
