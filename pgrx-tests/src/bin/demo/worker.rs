//! A worker: claims orders and ships them. Shipping and completing are one transaction, so an order
//! whose lease was lost is not shipped twice.

use postgres::{Client, Config, NoTls, Row};

/// Works until it is killed.
pub fn work(folder: &str, name: &str) {
    let config = format!("host={folder} user=postgres dbname=postgres application_name={name}");
    let mut client = config.parse::<Config>().expect("a connection string").connect(NoTls).expect("connect");
    let claim = client
        .prepare(
            "SELECT id, token, attempt, payload->>'kind', (payload->>'order')::bigint
                  FROM queue.claim(queue => 'orders', max_tasks => 5, worker => $1)",
        )
        .expect("prepare");
    loop {
        let orders = client.query(&claim, &[&name]).expect("claim");
        for order in &orders {
            handle(&mut client, order, name);
        }
        if orders.is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

fn handle(client: &mut Client, order: &Row, name: &str) {
    let (id, token, attempt, kind): (i64, i64, i32, &str) =
        (order.get(0), order.get(1), order.get(2), order.get(3));
    let done = if kind == "broken" || kind == "flaky" && attempt == 1 {
        client.execute("SELECT queue.fail($1, $2, 'the warehouse did not answer')", &[&id, &token])
    } else {
        ship(client, order.get(4), id, token, name)
    };
    match done {
        Ok(_) => {}
        // The lease is lost: another worker has the order, and this transaction was rolled back.
        Err(error) if error.code().is_some_and(|code| code.code() == "QX001") => {}
        Err(error) => panic!("{error}"),
    }
}

fn ship(client: &mut Client, order: i64, id: i64, token: i64, name: &str) -> Result<u64, postgres::Error> {
    let mut transaction = client.transaction()?;
    transaction.execute("INSERT INTO shop.shipped VALUES ($1, $2)", &[&order, &name])?;
    transaction.execute(
        "SELECT queue.complete($1, $2, jsonb_build_object('shipped_by', $3::text))",
        &[&id, &token, &name],
    )?;
    transaction.commit()?;
    Ok(1)
}
