//! Statements that must succeed.

use postgres::Client;

/// Runs the statements.
pub fn run(client: &mut Client, statements: &str) {
    client.batch_execute(statements).unwrap_or_else(|error| panic!("{statements}: {error:?}"));
}

/// Returns the number that the query returns.
pub fn number(client: &mut Client, query: &str) -> i64 {
    client.query_one(query, &[]).unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
}

/// Returns the text that the query returns.
pub fn text(client: &mut Client, query: &str) -> String {
    client.query_one(query, &[]).unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
}
