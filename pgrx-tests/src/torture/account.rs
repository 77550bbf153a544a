//! The journals of a round, read after it.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::journal::{Operation, Outcome};
use super::words::{decode, number, outcome, word};

/// The contents of the journals.
#[derive(Default)]
pub struct Account {
    pub operations: Vec<Operation>,
    /// Errors that no client should meet.
    pub errors: Vec<String>,
    /// Statements that were cancelled or timed out.
    pub cut_short: u64,
}

/// Reads the journals of a folder.
pub fn read(folder: &Path) -> Account {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("read the journals")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "journal"))
        .collect();
    files.sort();
    let (mut account, mut resolved) = (Account::default(), HashMap::new());
    for path in files {
        File::open(&path).and_then(|file| file.sync_all()).expect("sync a journal");
        let text = std::fs::read_to_string(&path).expect("read a journal");
        text.lines().for_each(|line| account.read_line(line, &mut resolved));
    }
    for operation in &mut account.operations {
        if let Some((outcome, end)) = resolved.get(&operation.name) {
            (operation.outcome, operation.end) = (*outcome, *end);
        }
    }
    account
}

impl Account {
    /// The times of crashes, from and to. An answer before a crash to a commit that did not wait for the disk, because of
    /// synchronous_commit = off or because it was that of a claim, counts only if a commit that waited came in between;
    /// otherwise the outcome is unknown.
    pub fn lose(&mut self, crashes: &[(i64, i64)], durable_leases: bool) {
        let mut flushes: Vec<_> = self.operations.iter().filter(|operation| operation.flushed()).collect();
        flushes.sort_by_key(|flush| flush.begin);
        let flushes: Vec<_> = flushes.iter().map(|flush| (flush.begin, flush.end)).collect();
        let lazy =
            |operation: &&mut Operation| operation.careless || !durable_leases && operation.only_claims();
        for operation in self.operations.iter_mut().filter(lazy) {
            let Some((from, _)) = crashes.iter().find(|(_, to)| operation.end < *to) else { continue };
            let later = flushes.partition_point(|(begin, _)| *begin < operation.end);
            let kept =
                flushes[later..].iter().take_while(|(begin, _)| begin < from).any(|(_, end)| end < from);
            if operation.outcome == Outcome::Ok && !kept {
                operation.outcome = Outcome::Unknown;
                operation.forgotten = true;
            }
        }
    }

    fn read_line(&mut self, line: &str, resolved: &mut HashMap<String, (Outcome, i64)>) {
        let mut words = line.split_whitespace();
        let first = word(&mut words);
        match first {
            "begin" => {
                let name = word(&mut words).to_owned();
                let begin = number(&mut words);
                // Until its end is read: a client that was killed never writes it.
                let (end, outcome) = (i64::MAX, Outcome::Unknown);
                let (careless, forgotten) = (number(&mut words) == 1, false);
                let (effects, undos) = (Vec::new(), Vec::new());
                self.operations.push(Operation {
                    name,
                    begin,
                    end,
                    outcome,
                    careless,
                    forgotten,
                    effects,
                    undos,
                });
                return;
            }
            "resolve" => {
                let name = word(&mut words).to_owned();
                resolved.insert(name, (outcome(&mut words), number(&mut words)));
                return;
            }
            "error" => return self.errors.push(line.to_owned()),
            "cut" => {
                self.cut_short += 1;
                return;
            }
            _ => {}
        }
        let operation = self.operations.last_mut().expect("an operation begins first");
        match first {
            "effect" => operation.effects.push((decode(&mut words), false)),
            "settle" => {
                let place = number(&mut words) as usize;
                operation.effects[place].0 = decode(&mut words);
            }
            "undo" => {
                let (from, to) = (number(&mut words) as usize, number(&mut words) as usize);
                operation.effects[from..to].iter_mut().for_each(|(_, undone)| *undone = true);
                operation.undos.push((from, to));
            }
            "end" => {
                operation.outcome = outcome(&mut words);
                operation.end = number(&mut words);
            }
            other => panic!("no such line: {other}"),
        }
    }
}
