//! Triggers, constraints, rules and other objects that users add to the tables.

use super::*;

#[test]
fn altered_tables_fall_back_to_sql() {
    let cluster = cluster("altered-tables");
    let (mut client, mut other) = (cluster.connect(), cluster.connect());
    run(
        &mut client,
        "CREATE TABLE public.seen (what text);
         CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO public.seen VALUES (TG_OP); RETURN NULL; END $$",
    );
    round(&mut client, "as it comes", "");
    round(&mut other, "as it comes", "");
    for (what, make, undo) in [
        (
            "a trigger",
            "CREATE TRIGGER mine AFTER INSERT OR UPDATE OR DELETE ON queue.tasks FOR EACH ROW EXECUTE FUNCTION public.see()",
            "DROP TRIGGER mine ON queue.tasks",
        ),
        (
            "a trigger on the history",
            "CREATE TRIGGER mine AFTER INSERT ON queue.history FOR EACH ROW EXECUTE FUNCTION public.see()",
            "DROP TRIGGER mine ON queue.history",
        ),
        (
            "a constraint",
            "ALTER TABLE queue.tasks ADD CONSTRAINT mine CHECK (priority < 100)",
            "ALTER TABLE queue.tasks DROP CONSTRAINT mine",
        ),
        (
            "an index on an expression",
            "CREATE INDEX mine ON queue.tasks ((payload ->> 'n'))",
            "DROP INDEX queue.mine",
        ),
        (
            "a partial index",
            "CREATE INDEX mine ON queue.tasks (worker) WHERE state = 'running'",
            "DROP INDEX queue.mine",
        ),
        (
            "a reference",
            "CREATE TABLE public.mine (task bigint REFERENCES queue.tasks ON DELETE CASCADE)",
            "DROP TABLE public.mine",
        ),
        (
            "a rule",
            "CREATE RULE mine AS ON INSERT TO queue.tasks DO ALSO NOTIFY mine",
            "DROP RULE mine ON queue.tasks",
        ),
        (
            "a constraint of exclusion",
            "ALTER TABLE queue.tasks ADD CONSTRAINT mine EXCLUDE USING btree (id WITH =)",
            "ALTER TABLE queue.tasks DROP CONSTRAINT mine",
        ),
        (
            "a table that a crash empties",
            "ALTER TABLE queue.tasks SET UNLOGGED",
            "ALTER TABLE queue.tasks SET LOGGED",
        ),
        (
            "a trigger of its own that is off",
            "ALTER TABLE queue.tasks DISABLE TRIGGER tasks_announced",
            "ALTER TABLE queue.tasks ENABLE TRIGGER tasks_announced",
        ),
        (
            "a replica identity",
            "ALTER TABLE queue.tasks REPLICA IDENTITY NOTHING",
            "ALTER TABLE queue.tasks REPLICA IDENTITY DEFAULT",
        ),
    ] {
        run(&mut client, make);
        // Which function is affected depends on the altered object.
        let (_, before) = verbs(&mut client, "altered");
        round_anyhow(&mut client, what);
        round_anyhow(&mut other, what);
        let (_, after) = verbs(&mut client, "altered");
        assert!(after - before >= 6, "{what}: {} fell back", after - before);
        run(&mut client, undo);
        round(&mut other, &format!("without {what}"), "");
    }
    let events = "SELECT count(DISTINCT what) FROM public.seen";
    assert_eq!(count(&mut client, events), 3, "the triggers saw everything");
    // In a database of its own, since a dropped column is never gone for good.
    run(&mut client, "CREATE DATABASE wider");
    let mut wider = cluster.connect_to("wider");
    run(&mut wider, "CREATE EXTENSION queue_ext; SELECT queue.create('wide')");
    for table in ["queue.tasks", "queue.history"] {
        run(&mut wider, &format!("ALTER TABLE {table} ADD COLUMN mine text DEFAULT 'x' NOT NULL"));
        eventually("its calls are counted", SOON, || {
            let (_, before) = verbs(&mut wider, "altered");
            round_anyhow(&mut wider, "a column");
            verbs(&mut wider, "altered").1 > before
        });
        run(&mut wider, "SELECT queue.push('wide')");
        run(&mut wider, &format!("ALTER TABLE {table} DROP COLUMN mine"));
        // A row that still has a value in the column is read as usual.
        let wide = "SELECT count(queue.complete(id, token)) FROM queue.claim('1 hour', 'wide')";
        assert_eq!(count(&mut wider, wide), 1, "{table}");
        round(&mut wider, &format!("a dropped column of {table}"), "");
    }
}

/// The owner of the tables can create triggers with any function of the extension; the server must survive that.
#[test]
fn trigger_functions_refuse_wrong_tables_and_events() {
    let cluster = cluster("altered-triggers");
    let mut client = cluster.connect();
    let (tasks, history, dead) = ("queue.tasks", "queue.history", "queue.dead_letters");
    let wrong = [
        (tasks, "AFTER INSERT", "STATEMENT", "task_changed"),
        (tasks, "AFTER INSERT", "STATEMENT", "tasks_announced"),
        (tasks, "BEFORE INSERT", "ROW", "tasks_announced"),
        (history, "AFTER DELETE", "STATEMENT", "history_counted"),
        (dead, "AFTER DELETE", "STATEMENT", "dead_letter_counted"),
        ("queue_internal.events", "AFTER DELETE", "STATEMENT", "event_announced"),
        ("queue_internal.dependencies", "AFTER DELETE", "STATEMENT", "tasks_announced"),
    ];
    for (table, event, each, function) in wrong {
        run(
            &mut client,
            &format!(
                "CREATE TRIGGER mine {event} ON {table} FOR EACH {each} EXECUTE FUNCTION queue_internal.{function}()"
            ),
        );
        let statement = match event.ends_with("INSERT") {
            true => "SELECT queue.push('default')".to_owned(),
            false => format!("DELETE FROM {table}"),
        };
        assert_eq!(code(&mut client, &statement), "39P01", "{function} {event} on {table}");
        run(&mut client, &format!("DROP TRIGGER mine ON {table}"));
    }
    run(
        &mut client,
        "CREATE TRIGGER mine AFTER DELETE ON queue.tasks REFERENCING OLD TABLE AS gone
         FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.tasks_announced()",
    );
    assert_eq!(code(&mut client, "DELETE FROM queue.tasks WHERE false"), "39P01", "the other table of rows");
    run(&mut client, "DROP TRIGGER mine ON queue.tasks");
    assert_eq!(code(&mut client, "SELECT queue_internal.task_changed()"), "39P01");
    round(&mut client, "without them", "");
}
