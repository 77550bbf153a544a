//! Scenarios that reach every point. Q is the name of a new queue.

/// The locks of another session.
pub enum Hold {
    Nothing,
    /// Rows, by the first statement, until the second.
    Rows(&'static str, &'static str),
    /// The refill of the lane, until it is cancelled.
    Refill,
}

/// A statement and its situation.
pub struct Scenario {
    pub name: &'static str,
    pub prepare: &'static [&'static str],
    pub hold: Hold,
    pub statement: &'static str,
}

const CLAIM: &str = "SELECT FROM queue.claim('1 hour', 'Q', 5)";
const PUSH_SOME: &str = "SELECT queue.push_many('Q', array_fill('1'::jsonb, ARRAY[7]))";
const CLAIM_TWO: &str = "SELECT queue.claim('1 hour', 'Q', 2)";
const CLAIM_TWO_IN_VAIN: &str = "SELECT queue.claim('1 us', 'Q', 2)";

const fn scenario(
    name: &'static str,
    prepare: &'static [&'static str],
    hold: Hold,
    statement: &'static str,
) -> Scenario {
    Scenario { name, prepare, hold, statement }
}

pub const SCENARIOS: &[Scenario] = &[
    scenario("claim, from a lane that knows nothing", &[PUSH_SOME], Hold::Nothing, CLAIM),
    scenario(
        "claim, and refill the lane while at it",
        &[
            "SELECT queue.push_many('Q', array_fill('1'::jsonb, ARRAY[1100]))",
            "WITH claimed AS (SELECT id, token FROM queue.claim('1 hour', 'Q', 768))
             SELECT queue.complete_many(array_agg(id), array_agg(token)) FROM claimed",
        ],
        Hold::Nothing,
        CLAIM,
    ),
    scenario("claim, while another session refills", &[PUSH_SOME], Hold::Refill, CLAIM),
    scenario(
        "claim, with a task locked",
        &[PUSH_SOME, CLAIM_TWO],
        Hold::Rows(
            "BEGIN; SELECT FROM queue.tasks WHERE id = (SELECT min(id) FROM queue.tasks WHERE queue = 'Q' AND state = 'queued') FOR UPDATE",
            "ROLLBACK",
        ),
        CLAIM,
    ),
    scenario("claim, with leases run out", &[PUSH_SOME, CLAIM_TWO_IN_VAIN], Hold::Nothing, CLAIM),
    scenario(
        "claim, with leases run out on locked tasks",
        &[PUSH_SOME, CLAIM_TWO_IN_VAIN],
        Hold::Rows(
            "BEGIN; SELECT FROM queue.tasks WHERE queue = 'Q' AND state = 'running' FOR UPDATE",
            "ROLLBACK",
        ),
        CLAIM,
    ),
    scenario(
        "claim, and leave the rest to the core",
        &[
            PUSH_SOME,
            "SELECT queue.push('Q', group_key => 'g')",
            CLAIM_TWO,
            // Like the admission of a task that was delayed when its turn came.
            "UPDATE queue.tasks SET admission = 0 WHERE queue = 'Q' AND group_key = 'g'",
        ],
        Hold::Nothing,
        "SELECT FROM queue.claim('1 hour', 'Q', 10)",
    ),
    scenario("push", &[PUSH_SOME, CLAIM_TWO], Hold::Nothing, "SELECT queue.push('Q')"),
    scenario(
        "push many",
        &[PUSH_SOME, CLAIM_TWO],
        Hold::Nothing,
        "SELECT queue.push_many('Q', array_fill('1'::jsonb, ARRAY[70]))",
    ),
    scenario(
        "complete",
        &[PUSH_SOME, CLAIM_TWO],
        Hold::Nothing,
        "SELECT queue.complete(id, token) FROM queue.tasks WHERE queue = 'Q' AND state = 'running'",
    ),
    scenario(
        "complete what another task waits for",
        &["SELECT queue.push('Q', after => ARRAY[queue.push('Q')])", CLAIM_TWO],
        Hold::Nothing,
        "SELECT queue.complete(id, token) FROM queue.tasks WHERE queue = 'Q' AND state = 'running'",
    ),
    scenario(
        "complete many",
        &[PUSH_SOME, CLAIM_TWO],
        Hold::Nothing,
        "SELECT queue.complete_many(array_agg(id), array_agg(token)) FROM queue.tasks
         WHERE queue = 'Q' AND state = 'running'",
    ),
    scenario(
        "complete, in a group in which another task is next",
        &["SELECT queue.push('Q', group_key => 'g'), queue.push('Q', group_key => 'g')", CLAIM_TWO],
        Hold::Nothing,
        "SELECT queue.complete(id, token) FROM queue.tasks WHERE queue = 'Q' AND state = 'running'",
    ),
    scenario(
        "complete many, of which the core has to complete some",
        &[PUSH_SOME, CLAIM_TWO],
        Hold::Rows(
            "BEGIN; UPDATE queue.tasks SET key = 'k' WHERE queue = 'Q' AND state = 'running' AND id % 2 = 0",
            "COMMIT",
        ),
        "SELECT queue.complete_many(array_agg(id), array_agg(token)) FROM queue.tasks
         WHERE queue = 'Q' AND state = 'running'",
    ),
    scenario(
        "complete and claim",
        &[PUSH_SOME, CLAIM_TWO],
        Hold::Nothing,
        "SELECT queue.complete_and_claim(id, token, lease => '1 hour', queue => 'Q') FROM queue.tasks
         WHERE queue = 'Q' AND state = 'running'",
    ),
    scenario(
        "extend",
        &[PUSH_SOME, CLAIM_TWO],
        Hold::Nothing,
        "SELECT queue.extend(id, token, '2 hours') FROM queue.tasks WHERE queue = 'Q' AND state = 'running'",
    ),
    scenario("wait, with tasks there", &[PUSH_SOME], Hold::Nothing, "CALL queue.wait('Q')"),
    scenario("stats, counted", &[PUSH_SOME], Hold::Nothing, "SELECT FROM queue.stats WHERE queue = 'Q'"),
];
