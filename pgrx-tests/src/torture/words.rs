//! Effects as the words of a line of a journal.

use std::str::SplitWhitespace;

use super::journal::{Effect, Link, OnFailure, Outcome, Verb};

pub fn word<'a>(words: &mut SplitWhitespace<'a>) -> &'a str {
    words.next().expect("a word")
}

pub fn number(words: &mut SplitWhitespace<'_>) -> i64 {
    word(words).parse().expect("a number")
}

fn maybe(words: &mut SplitWhitespace<'_>) -> Option<String> {
    Some(word(words)).filter(|word| *word != "-").map(str::to_owned)
}

pub fn outcome(words: &mut SplitWhitespace<'_>) -> Outcome {
    match word(words) {
        "ok" => Outcome::Ok,
        "failed" => Outcome::Failed,
        _ => Outcome::Unknown,
    }
}

fn or_dash<T: ToString>(value: Option<&T>) -> String {
    value.map_or("-".to_owned(), T::to_string)
}

pub fn encode(effect: &Effect) -> String {
    match effect {
        Effect::Push { queue, value, key, group, link, id } => {
            let (key, group, id) = (or_dash(key.as_ref()), or_dash(group.as_ref()), or_dash(id.as_ref()));
            let Link { after, on_failure, replaces } = link;
            let after: Vec<String> = after.iter().map(i64::to_string).collect();
            let after = or_dash(Some(after.join(",")).filter(|after| !after.is_empty()).as_ref());
            format!("push {queue} {value} {key} {group} {id} {after} {on_failure:?} {}", u8::from(*replaces))
        }
        Effect::Claim { id, token, queue, value, group, until, lease } => {
            format!("claim {id} {token} {queue} {value} {} {until} {lease}", or_dash(group.as_ref()))
        }
        Effect::Extend { id, token, lease, until } => {
            format!("extend {id} {token} {lease} {}", or_dash(until.as_ref()))
        }
        Effect::End { verb, id, token, accepted } => format!("{verb:?} {id} {token} {}", u8::from(*accepted)),
        Effect::Cancel { id, state } => format!("cancel {id} {}", or_dash(state.as_ref())),
        Effect::Deadline { value, from, to } => format!("deadline {value} {from} {to}"),
        Effect::Timeout { value, timeout } => format!("timeout {value} {timeout}"),
        Effect::Weight { value, weight } => format!("weight {value} {weight}"),
        Effect::Sleep { id, token, named, time, over } => {
            let over = or_dash(over.map(u8::from).as_ref());
            format!("sleep {id} {token} {} {time} {over}", u8::from(*named))
        }
        Effect::Open { batch } => format!("open {batch}"),
        Effect::Join { batch, value } => format!("join {batch} {value}"),
        Effect::Seal { batch } => format!("seal {batch}"),
        Effect::Emit { event, value } => format!("emit {event} {value}"),
        Effect::Step { id, token, name, value, stored } => {
            format!("step {id} {token} {name} {value} {}", or_dash(stored.as_ref()))
        }
    }
}

pub fn decode(words: &mut SplitWhitespace<'_>) -> Effect {
    let kind = word(words);
    let verb = match kind {
        "push" => {
            let (queue, value) = (word(words).to_owned(), word(words).to_owned());
            let (key, group) = (maybe(words), maybe(words));
            let id = maybe(words).map(|id| id.parse().expect("an id"));
            let after = maybe(words).map_or_else(Vec::new, |after| {
                after.split(',').map(|id| id.parse().expect("an id")).collect()
            });
            let on_failure = match word(words) {
                "Cancel" => OnFailure::Cancel,
                "Fail" => OnFailure::Fail,
                _ => OnFailure::Continue,
            };
            let link = Link { after, on_failure, replaces: number(words) == 1 };
            return Effect::Push { queue, value, key, group, link, id };
        }
        "claim" => {
            let (id, token) = (number(words), number(words));
            let (queue, value, group) = (word(words).to_owned(), word(words).to_owned(), maybe(words));
            return Effect::Claim {
                id,
                token,
                queue,
                value,
                group,
                until: number(words),
                lease: number(words),
            };
        }
        "extend" => {
            let (id, token, lease) = (number(words), number(words), number(words));
            let until = maybe(words).map(|until| until.parse().expect("a time"));
            return Effect::Extend { id, token, lease, until };
        }
        "cancel" => return Effect::Cancel { id: number(words), state: maybe(words) },
        "deadline" => {
            let value = word(words).to_owned();
            return Effect::Deadline { value, from: number(words), to: number(words) };
        }
        "timeout" => {
            return Effect::Timeout { value: word(words).to_owned(), timeout: number(words) };
        }
        "weight" => return Effect::Weight { value: word(words).to_owned(), weight: number(words) },
        "sleep" => {
            let (id, token, named) = (number(words), number(words), number(words) == 1);
            let (time, over) = (number(words), maybe(words).map(|over| over == "1"));
            return Effect::Sleep { id, token, named, time, over };
        }
        "open" => return Effect::Open { batch: number(words) },
        "join" => return Effect::Join { batch: number(words), value: word(words).to_owned() },
        "seal" => return Effect::Seal { batch: number(words) },
        "emit" => return Effect::Emit { event: word(words).to_owned(), value: word(words).to_owned() },
        "step" => {
            let (id, token, name) = (number(words), number(words), word(words).to_owned());
            return Effect::Step { id, token, name, value: word(words).to_owned(), stored: maybe(words) };
        }
        "Complete" => Verb::Complete,
        "Fail" => Verb::Fail,
        "FailForGood" => Verb::FailForGood,
        "Release" => Verb::Release,
        "Cancelled" => Verb::Cancelled,
        other => panic!("no such effect: {other}"),
    };
    Effect::End { verb, id: number(words), token: number(words), accepted: number(words) == 1 }
}
