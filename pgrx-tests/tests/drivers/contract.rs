//! The calls, in an order in which each has an effect, and their expected results.

use super::calls::Value::{Array, Bigint, Integer, Text};
use super::*;

/// The SQL type of a column, and the position of its type in a driver's list.
#[derive(Clone, Copy)]
enum Column {
    Number = 0,
    Json = 1,
    Time = 2,
    Yes = 3,
    Word = 4,
}
use Column::{Json, Number, Time, Word, Yes};

/// The driver, and the types in which columns arrive there.
struct Caller<'a, F> {
    who: &'a str,
    types: &'a [&'a str; 5],
    say: F,
}

impl<F: FnMut(&[Call]) -> Vec<Answer>> Caller<'_, F> {
    /// The values that came back, once their types are as they have to be.
    fn check(&self, call: &Call, answer: Answer, columns: &[Column]) -> Vec<String> {
        let Answer::Rows(cells) = answer else { panic!("{}: {}: {answer:?}", self.who, call.statement) };
        let kinds: Vec<_> = cells.iter().map(|(kind, _)| kind.as_str()).collect();
        let expected: Vec<_> = columns.iter().map(|column| self.types[*column as usize]).collect();
        assert_eq!(kinds, expected, "{}: {}", self.who, call.statement);
        let plain = |text: String| text.replace([' ', '\'', '"'], "").to_lowercase();
        cells.into_iter().map(|(_, value)| plain(value)).collect()
    }

    fn all(&mut self, batch: &[(Call, &[Column])]) -> Vec<Vec<String>> {
        let calls: Vec<Call> = batch.iter().map(|(call, _)| call.clone()).collect();
        let answers = (self.say)(&calls);
        batch.iter().zip(answers).map(|((call, columns), answer)| self.check(call, answer, columns)).collect()
    }

    fn one(&mut self, statement: &'static str, values: Vec<calls::Value>, columns: &[Column]) -> Vec<String> {
        self.all(&[(Call::new(statement, values), columns)]).remove(0)
    }

    fn refused(&mut self, statement: &'static str, values: Vec<calls::Value>, sqlstate: &str) {
        let answer = (self.say)(&[Call::new(statement, values)]).remove(0);
        assert!(
            matches!(&answer, Answer::Error(code) if code == sqlstate),
            "{}: {statement}: {answer:?}",
            self.who
        );
    }
}

const PUSH: &str = "SELECT queue.push($1, $2::jsonb, priority => $3)";
const PUSH_MANY: &str = "SELECT queue.push_many($1, $2::jsonb[])";
const CLAIM: &str =
    "SELECT id, token, payload, lease_until, queue FROM queue.claim(queue => $1, worker => $2)";
const EXTEND: &str = "SELECT * FROM queue.extend($1, $2, progress => $3::jsonb)";
const NEXT: &str = "SELECT id, token FROM queue.complete_and_claim($1, $2, $3::jsonb, queue => $4)";
const COMPLETE: &str = "SELECT queue.complete($1, $2) IS NULL";
const FAIL: &str = "SELECT queue.fail($1, $2, $3, retry_in => '0')";
const RELEASE: &str = "SELECT queue.release($1, $2) IS NULL";
const GET: &str = "SELECT id, state, progress FROM queue.get($1)";
const WAIT: &str = "CALL queue.wait($1, '200 ms')";

const CLAIMED: &[Column] = &[Number, Number, Json, Time, Word];

/// Makes the calls, and checks the results.
pub fn hold(who: &str, types: &[&str; 5], say: impl FnMut(&[Call]) -> Vec<Answer>) {
    let mut caller = Caller { who, types, say };
    let queue: String = who.chars().filter(char::is_ascii_alphanumeric).collect();
    let text = |text: &str| Text(text.to_owned());
    let name = || Text(queue.clone());
    caller.one("SELECT queue.create($1) IS NULL", vec![name()], &[Yes]);
    let pushed = caller.all(&[
        (Call::new(PUSH, vec![name(), text("{\"n\": 1}"), Integer(-1)]), &[Number]),
        (
            Call::new(PUSH_MANY, vec![name(), Array(vec!["{\"n\": 2}".into(), "{\"n\": 3}".into()])]),
            &[Number, Number],
        ),
    ]);
    let [first, second, third] = [&pushed[0][0], &pushed[1][0], &pushed[1][1]].map(String::to_owned);
    let id = |text: &str| Bigint(text.parse().expect("an id"));
    assert_eq!(caller.one(WAIT, vec![name()], &[Yes])[0][..1], *"t", "{who}: there is something to claim");
    let claim = || (Call::new(CLAIM, vec![name(), text("w")]), CLAIMED);
    let claimed = caller.all(&[claim(), claim()]);
    for (task, (id, n)) in claimed.iter().zip([(&first, 1), (&second, 2)]) {
        assert_eq!(
            [&task[0], &task[1], &task[2], &task[4]],
            [id, "1", &format!("{{n:{n}}}"), &queue.to_lowercase()]
        );
    }
    let extended = caller.all(&[
        (Call::new(EXTEND, vec![id(&first), Bigint(1), text("{\"n\": 4}")]), &[Time, Yes]),
        (Call::new(EXTEND, vec![id(&second), Bigint(1), text("{\"n\": 5}")]), &[Time, Yes]),
    ]);
    assert!(extended.iter().all(|row| row[1].starts_with('f')), "{who}: nobody cancelled anything");
    let ended = caller.all(&[
        (Call::new(NEXT, vec![id(&first), Bigint(1), text("{}"), name()]), &[Number, Number]),
        (Call::new(FAIL, vec![id(&second), Bigint(1), text("it's late")]), &[Word]),
    ]);
    assert_eq!(ended, [vec![third.clone(), "1".into()], vec!["queued".to_owned()]], "{who}");
    caller.refused(COMPLETE, vec![id(&first), Bigint(1)], "QX001");
    caller.one(RELEASE, vec![id(&third), Bigint(1)], &[Yes]);
    for (task, token) in [(&second, 2), (&third, 2)] {
        let next = caller.one(CLAIM, vec![name(), text("w")], CLAIMED);
        assert_eq!((&next[0], next[1].parse()), (task, Ok(token)), "{who}: both kept their places");
        caller.one(COMPLETE, vec![id(task), Bigint(token)], &[Yes]);
    }
    let seen = caller.one(GET, vec![id(&first)], &[Number, Word, Json]);
    assert_eq!(seen, [first.as_str(), "completed", "{n:4}"], "{who}");
    // Nothing is left; it waits, which it could not do in a transaction.
    let began = Instant::now();
    assert_eq!(caller.one(WAIT, vec![name()], &[Yes])[0][..1], *"f", "{who}");
    assert!(began.elapsed() >= Duration::from_millis(200), "{who}: it did not wait");
    caller.refused(PUSH, vec![text("no such queue"), text("{}"), Integer(0)], "QX002");
    caller.refused(GET, vec![Bigint(i64::MAX)], "QX003");
    caller.refused(
        "SELECT queue.push($1, key => 'k', on_duplicate => $2)",
        vec![name(), text("nonsense")],
        "22023",
    );
    caller.one("SELECT queue.push($1, key => 'k')", vec![name()], &[Number]);
    caller.refused(
        "SELECT queue.push($1, key => 'k', on_duplicate => $2)",
        vec![name(), text("error")],
        "QX004",
    );
    let left = caller.one(CLAIM, vec![name(), text("w")], CLAIMED);
    caller.refused("SELECT queue.confirm_cancel($1, $2)", vec![id(&left[0]), Bigint(1)], "QX005");
}
