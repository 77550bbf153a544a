//! The table, the lane and the sessions: the steps of a history, and the checks after each.

use super::*;

pub struct World {
    pub lane: Box<Lane>,
    pub now: i64,
    pub next_id: i64,
    /// Committed, in the order of ids.
    pub tasks: BTreeMap<i64, Task>,
    pub untold: Vec<Vec<Tell>>,
    pub claims: Vec<Claim>,
    pub refill: Option<Refill>,
    /// Expired leases, taken by a session that will end the attempts.
    pub expiring: Vec<i64>,
    /// How many leases there were.
    pub leases: i64,
    pub random: Random,
    pub priorities: usize,
    /// How much happens at once, at most.
    pub bulk: usize,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        // SAFETY: a lane is numbers and arrays of numbers, for which all bytes zero are values.
        let mut lane = unsafe { Box::<MaybeUninit<Lane>>::new_zeroed().assume_init().assume_init() };
        let now = 1_000_000;
        lane.clear(now);
        let bulk = [3, 40, 400, 2600][random.below(4)];
        let priorities = [1, 2, 5][random.below(3)];
        Self {
            lane,
            now,
            next_id: 1,
            tasks: BTreeMap::new(),
            untold: Vec::new(),
            claims: Vec::new(),
            refill: None,
            expiring: Vec::new(),
            leases: 0,
            random,
            priorities,
            bulk,
        }
    }

    /// A copy of the world, to be drained.
    pub fn copy(&self) -> Self {
        // SAFETY: as in `new`; a lane has no pointers.
        let lane = unsafe {
            let mut copy = Box::<Lane>::new_uninit();
            std::ptr::copy_nonoverlapping(&*self.lane, copy.as_mut_ptr(), 1);
            copy.assume_init()
        };
        Self {
            lane,
            now: self.now,
            next_id: self.next_id,
            tasks: self.tasks.clone(),
            untold: self.untold.clone(),
            claims: self.claims.clone(),
            refill: self.refill.clone(),
            expiring: self.expiring.clone(),
            leases: self.leases,
            random: self.random.clone(),
            priorities: self.priorities,
            bulk: self.bulk,
        }
    }

    /// How many, mostly few.
    pub fn some(&mut self) -> usize {
        if self.random.chance(4) { 1 + self.random.below(self.bulk) } else { 1 + self.random.below(3) }
    }

    /// Tasks, in a run of ids from a random one on, that `fit`.
    pub fn choose(&mut self, count: usize, fit: impl Fn(&Task) -> bool) -> Vec<Task> {
        let start = self.random.time(self.next_id);
        let all = self.tasks.range(start..).chain(self.tasks.range(..start));
        all.map(|(_, task)| *task).filter(fit).take(count).collect()
    }

    pub fn commit(&mut self, tells: Vec<Tell>) {
        for task in tells.iter().filter_map(Tell::id) {
            if let Some(task) = self.tasks.get_mut(&task) {
                task.untold += 1;
            }
        }
        let tells = if tells.len() > 2048 { summarised(&tells) } else { tells };
        self.untold.push(tells);
        // Mostly at once.
        if !self.random.chance(3) {
            let last = self.untold.len() - 1;
            self.tell(last);
        }
    }

    pub fn tell(&mut self, which: usize) {
        for tell in self.untold.remove(which) {
            let lane = &mut self.lane;
            match tell {
                Tell::Added(key) => drop(lane.add(key, self.now)),
                Tell::Leased(key, until) => lane.leased(key, until, self.now),
                Tell::Extended(key, until) => lane.extended(key, until, self.now),
                Tell::Removed(key, until) => lane.removed(key, until),
                Tell::Summary { added, added_from, until } => {
                    lane.lower(added);
                    lane.lower_scheduled(added_from);
                    lane.leases.add_unknown(until);
                }
                Tell::Nothing(_) => {}
            }
            if let Some(task) = tell.id().and_then(|id| self.tasks.get_mut(&id)) {
                task.untold -= 1;
            }
        }
    }

    pub fn run_at(&mut self) -> i64 {
        match self.random.below(8) {
            // Many at one instant, and many in a short time.
            0 => (self.now / 100_000 + 2) * 100_000,
            1 => self.now + self.random.time(50),
            2 => self.now + self.random.time(1_000_000),
            3 => self.now - self.random.time(1_000_000),
            _ => self.now,
        }
    }

    pub fn push(&mut self) {
        let count = self.some();
        let (priority, at) = (self.random.below(self.priorities) as i32, self.run_at());
        let spread = [1, 1, 1000][self.random.below(3)];
        let mut tells = Vec::new();
        for _ in 0..count {
            let key = Key { priority, run_at: at + self.random.time(spread), id: self.next_id };
            self.next_id += 1;
            self.tasks.insert(key.id, Task { key, state: State::Queued, claim: None, untold: 0 });
            tells.push(Tell::Added(key));
        }
        if self.random.chance(5) {
            // Rolled back: the lane never hears of it.
            self.tasks.retain(|id, _| tells.first().and_then(Tell::id).is_none_or(|first| *id < first));
            return;
        }
        self.commit(tells);
    }

    /// Whether a claim could lease it now.
    pub fn is_due(&self, task: &Task) -> bool {
        task.state == State::Queued && task.key.run_at <= self.now
    }

    pub fn claim(&mut self, me: i32) {
        let wanted = self.some().min(256);
        let mut taken = Vec::new();
        let answer = self.lane.take(wanted, self.now, me, |key| taken.push(key));
        let number = self.random.next();
        let mut claim = Claim { number, taken: Vec::new() };
        for key in taken {
            match self.tasks.get(&key.id).copied() {
                Some(task) if task.key != key || !self.is_due(&task) => {}
                Some(Task { claim: Some(_), .. }) => self.lane.postpone(key, self.now + 20_000),
                Some(_) => {
                    if let Some(task) = self.tasks.get_mut(&key.id) {
                        task.claim = Some(number);
                    }
                    claim.taken.push(key);
                }
                None => {}
            }
        }
        if let Answer::Refill(plan) = answer {
            self.begin(plan, me);
        }
        if !claim.taken.is_empty() {
            self.claims.push(claim);
            if !self.random.chance(3) {
                self.end_claim(self.claims.len() - 1);
            }
        }
    }

    pub fn begin(&mut self, plan: RefillPlan, by: i32) {
        assert!(self.refill.as_ref().is_none_or(|refill| refill.by == by), "one refill at a time");
        self.refill = Some(Refill { plan, by, found: None });
    }

    /// The end of a new lease. No two of one task end at the same microsecond.
    pub fn lease(&mut self) -> i64 {
        self.leases += 1;
        self.now + self.leases % 1000 + [10, 1_000, 300_000, 30_000_000][self.random.below(4)]
    }

    pub fn end_claim(&mut self, which: usize) {
        let claim = self.claims.swap_remove(which);
        for key in &claim.taken {
            if let Some(task) = self.tasks.get_mut(&key.id) {
                task.claim = None;
            }
        }
        if self.random.chance(4) {
            // Rolled back.
            for key in claim.taken {
                self.lane.add(key, NEVER);
            }
            return;
        }
        let until = self.lease();
        for key in &claim.taken {
            if let Some(task) = self.tasks.get_mut(&key.id) {
                task.state = State::Running(until);
            }
        }
        self.commit(claim.taken.iter().map(|key| Tell::Leased(*key, until)).collect());
    }

    /// A claim in SQL: it finds its tasks in the table, and locks tasks that may also be in the lane.
    pub fn claim_by_core(&mut self) {
        let (count, now) = (self.some(), self.now);
        let fit = |task: &Task| task.state == State::Queued && task.key.run_at <= now && task.claim.is_none();
        let until = self.lease();
        let tasks = self.choose(count, fit);
        for task in &tasks {
            self.tasks.insert(task.key.id, Task { state: State::Running(until), ..*task });
        }
        self.commit(tasks.iter().map(|task| Tell::Leased(task.key, until)).collect());
    }

    /// A worker does something with tasks whose token it has.
    pub fn work(&mut self) {
        let count = self.some();
        let what = self.random.below(4);
        let (until, later) = (self.lease(), self.run_at());
        let fit =
            |task: &Task| matches!(task.state, State::Running(_)) && task.untold == 0 && task.claim.is_none();
        let mut tells = Vec::new();
        for task in self.choose(count, fit) {
            let (id, key) = (task.key.id, task.key);
            match what {
                0 => {
                    self.tasks.remove(&id);
                    tells.push(Tell::Removed(key, task.until()));
                }
                1 => {
                    self.tasks.insert(id, Task { state: State::Running(until), ..task });
                    tells.push(Tell::Extended(key, until));
                }
                // Released, or failed and to be tried again later.
                _ => {
                    let back = if what == 2 { key } else { Key { run_at: later, ..key } };
                    self.tasks.insert(id, Task { key: back, state: State::Queued, ..task });
                    tells.extend([Tell::Removed(key, task.until()), Tell::Added(back)]);
                }
            }
        }
        self.commit(tells);
    }

    /// An operator changes or deletes tasks that are queued.
    pub fn operate(&mut self) {
        let (count, deletes) = (self.some(), self.random.chance(2));
        let priority = self.random.below(self.priorities) as i32;
        let mut tells = Vec::new();
        // Two sessions that move a task away and back before the first commit was published are left to the sweep.
        let fit = |task: &Task| task.state == State::Queued && task.untold == 0 && task.claim.is_none();
        for task in self.choose(count, fit) {
            tells.push(Tell::Removed(task.key, NEVER));
            if deletes {
                self.tasks.remove(&task.key.id);
            } else {
                let key = Key { priority, ..task.key };
                self.tasks.insert(key.id, Task { key, ..task });
                tells.push(Tell::Added(key));
            }
        }
        self.commit(tells);
    }

    /// A step of the worker: takes the expired leases, and refills what is unknown.
    pub fn tend(&mut self) {
        let mut ids = [0; 64];
        let count = self.lane.leases.take_expired(self.now, &mut ids);
        self.expiring.extend(&ids[..count]);
        let unknown = self.lane.leases.unknown() <= self.now || self.lane.scheduled_unknown(self.now);
        if (unknown || self.random.chance(4))
            && let Some(plan) = self.lane.reread(self.now, 99)
        {
            self.begin(plan, 99);
        }
        self.lane.move_due(self.now);
    }

    /// Ends the attempts of `expiring`, or of any task with an expired lease; or fails.
    pub fn expire(&mut self) {
        let mut ids = std::mem::take(&mut self.expiring);
        if self.random.chance(4) {
            for id in ids {
                self.lane.leases.take_back(Lease { id, until: self.now });
            }
            return;
        }
        let mine = ids.clone();
        if self.random.chance(4) {
            ids = self.tasks.keys().copied().collect();
        }
        let mut tells = Vec::new();
        for id in ids {
            let Some(task) = self.tasks.get_mut(&id) else { continue };
            if matches!(task.state, State::Running(until) if until <= self.now) {
                tells.extend([Tell::Removed(task.key, task.until()), Tell::Added(task.key)]);
                task.state = State::Queued;
            }
        }
        // Those that were not to be ended have another lease by now.
        for id in mine {
            if let Some(Task { state: State::Running(until), .. }) = self.tasks.get(&id) {
                self.lane.leases.take_back(Lease { id, until: *until });
            }
        }
        self.commit(tells);
    }

    /// A commit that no callback publishes, such as COMMIT PREPARED, which invalidates the lane.
    pub fn surprise(&mut self) {
        let until = self.lease();
        let count = self.some();
        for task in self.choose(count, |task| task.state == State::Queued && task.claim.is_none()) {
            if self.random.chance(2) {
                self.tasks.remove(&task.key.id);
            } else if task.key.run_at <= self.now {
                self.tasks.insert(task.key.id, Task { state: State::Running(until), ..task });
            }
        }
        for _ in 0..count {
            let key = Key { priority: 0, run_at: self.run_at(), id: self.next_id };
            self.next_id += 1;
            self.tasks.insert(key.id, Task { key, state: State::Queued, claim: None, untold: 0 });
        }
        self.lane.invalidate();
    }

    pub fn read(&self, plan: RefillPlan) -> Findings {
        self.read_priorities(plan, usize::MAX)
    }

    fn read_priorities(&self, plan: RefillPlan, most_priorities: usize) -> Findings {
        let mut order: Vec<Task> = self.tasks.values().copied().collect();
        order.sort_unstable_by_key(|task| task.key);
        read(&mut Snapshot { order, at: 0, level: 0 }, plan, self.now, most_priorities)
    }

    /// One step of the refill: it reads, or publishes to the lane, or fails.
    pub fn go_on(&mut self) {
        let Some(mut refill) = self.refill.take() else { return };
        match &refill.found {
            _ if self.random.chance(6) => self.lane.give_up(),
            None => {
                // The worker leaves off after some priorities.
                let most =
                    if refill.by == 99 { [1, 2, usize::MAX][self.random.below(3)] } else { usize::MAX };
                refill.found = Some(std::rc::Rc::new(self.read_priorities(refill.plan, most)));
                self.refill = Some(refill);
            }
            Some(found) => drop(self.lane.refilled(refill.plan, found, self.now)),
        }
    }

    pub fn step(&mut self) -> &'static str {
        match self.random.below(32) {
            0..=5 => (self.push(), "push").1,
            6..=10 => {
                let me = 1 + self.random.below(2) as i32;
                (self.claim(me), "claim").1
            }
            11..=13 if !self.claims.is_empty() => {
                let which = self.random.below(self.claims.len());
                (self.end_claim(which), "end of a claim").1
            }
            14 => (self.claim_by_core(), "claim by the core").1,
            15..=17 => (self.work(), "work").1,
            18 => (self.operate(), "operate").1,
            19..=20 => (self.tend(), "tend").1,
            21..=22 => (self.expire(), "expire").1,
            23 if self.random.chance(4) => (self.surprise(), "surprise").1,
            24..=26 => (self.go_on(), "refill").1,
            27..=29 if !self.untold.is_empty() => {
                let which = self.random.below(self.untold.len());
                (self.tell(which), "tell").1
            }
            _ => {
                self.now += [1, 100, 20_000, 200_000][self.random.below(4)];
                "time"
            }
        }
    }

    pub fn check(&self) {
        for task in self.tasks.values().filter(|task| task.untold == 0 && task.claim.is_none()) {
            match task.state {
                State::Queued if task.key.run_at <= self.now => {
                    assert!(!self.lane.hides(task.key), "{task:?} can be claimed, and is hidden");
                    let oldest = self.lane.first().filter(|first| first.priority == task.key.priority);
                    assert!(
                        oldest.is_none_or(|oldest| oldest.run_at <= task.key.run_at),
                        "{task:?} is older than {oldest:?}"
                    );
                }
                State::Queued => {
                    assert!(!self.lane.hides_scheduled(task.key), "{task:?} comes due, and is hidden")
                }
                State::Running(until) => {
                    let lease = Lease { id: task.key.id, until: until.max(self.now) };
                    let hidden = !self.expiring.contains(&lease.id) && self.lane.hides_lease(task.key, lease);
                    assert!(!hidden, "{task:?} runs, and the end of its lease is hidden");
                }
            }
        }
    }

    /// Everything that is open ends, and all that can be claimed is claimed.
    pub fn drain(mut self) {
        while !self.claims.is_empty() {
            let claim = self.claims.swap_remove(0);
            for key in claim.taken {
                if let Some(task) = self.tasks.get_mut(&key.id) {
                    task.claim = None;
                }
                self.lane.add(key, NEVER);
            }
        }
        while !self.untold.is_empty() {
            self.tell(0);
        }
        if let Some(refill) = self.refill.take() {
            match refill.found {
                Some(found) => drop(self.lane.refilled(refill.plan, &found, self.now)),
                None => self.lane.give_up(),
            }
        }
        // Tasks that were found locked come later; here they are unlocked.
        self.lane.retry(NEVER);
        let mut left: BTreeSet<Key> =
            self.tasks.values().filter(|task| self.is_due(task)).map(|task| task.key).collect();
        let mut rounds = 200 + 4 * self.tasks.len();
        loop {
            rounds -= 1;
            assert!(rounds > 0, "it ends");
            let mut taken = Vec::new();
            let answer = self.lane.take(100, self.now, 1, |key| taken.push(key));
            for key in &taken {
                if left.contains(key) {
                    assert_eq!(left.first(), Some(key), "in order");
                    left.pop_first();
                    self.tasks.remove(&key.id);
                }
            }
            match answer {
                Answer::Refill(plan) => {
                    let found = self.read(plan);
                    self.lane.refilled(plan, &found, self.now);
                }
                Answer::Complete if taken.len() < 100 => break,
                Answer::Complete => {}
                Answer::Refilling(_) => panic!("nobody refills"),
            }
        }
        assert!(left.is_empty(), "{} tasks were not handed out, {:?} first", left.len(), left.first());
    }
}

/// Changes that do not fit are published as bounds.
pub fn summarised(tells: &[Tell]) -> Vec<Tell> {
    let mut kept = tells[..2048].to_vec();
    let (mut first, mut from, mut ends) = (Key::LAST, NEVER, NEVER);
    for tell in &tells[2048..] {
        match tell {
            Tell::Added(key) => (first, from) = (first.min(*key), from.min(key.run_at)),
            Tell::Leased(_, until) | Tell::Extended(_, until) => ends = ends.min(*until),
            _ => {}
        }
        kept.extend(tell.id().map(Tell::Nothing));
    }
    kept.insert(2048, Tell::Summary { added: first, added_from: from, until: ends });
    kept
}
