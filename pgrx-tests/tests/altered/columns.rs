//! Columns that must not be null any more, and columns that may.

use super::*;

#[test]
fn nulls_in_not_null_columns_are_refused_alike() {
    let cluster = cluster("altered-nulls");
    let mut client = cluster.connect();
    for (table, column, statement) in [
        ("queue.tasks", "headers", "SELECT queue.push('default')"),
        ("queue.history", "result", "SELECT queue.complete(id, token) FROM queue.claim('1 hour')"),
    ] {
        run(&mut client, "DELETE FROM queue.tasks; SELECT queue.push('default', headers => '{}')");
        run(&mut client, &format!("ALTER TABLE {table} ALTER {column} SET NOT NULL"));
        let came_to = ["on", "off"].map(|fast_path| {
            run(&mut client, &format!("SET queue.fast_path = {fast_path}"));
            code(&mut client, statement)
        });
        assert_eq!(came_to, ["23502", "23502"], "{statement} where {column} must not be null");
        run(&mut client, &format!("ALTER TABLE {table} ALTER {column} DROP NOT NULL; RESET queue.fast_path"));
    }
    run(&mut client, "DELETE FROM queue.tasks");
    round(&mut client, "with nulls again", "");
}

#[test]
fn columns_that_became_nullable_fall_back_to_sql() {
    let cluster = cluster("altered-may-be-null");
    let mut client = cluster.connect();
    for column in ["queue", "created_at"] {
        run(
            &mut client,
            "DELETE FROM queue.tasks; SELECT queue.push('default'); SELECT * FROM queue.claim('1 hour')",
        );
        run(&mut client, &format!("ALTER TABLE queue.tasks ALTER {column} DROP NOT NULL"));
        run(
            &mut client,
            &format!(
                "ALTER TABLE queue.tasks DISABLE TRIGGER task_changed; UPDATE queue.tasks SET {column} = NULL; ALTER TABLE queue.tasks ENABLE ALWAYS TRIGGER task_changed"
            ),
        );
        let statement = "SELECT queue.complete(id, token) FROM queue.tasks";
        assert_eq!(code(&mut client, statement), "23502", "{column} is null");
        run(
            &mut client,
            &format!(
                "DELETE FROM queue.tasks WHERE {column} IS NOT NULL; TRUNCATE queue.tasks; ALTER TABLE queue.tasks ALTER {column} SET NOT NULL"
            ),
        );
    }
    round(&mut client, "without nulls again", "");
}
