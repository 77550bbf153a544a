//! A trace as a person reads it.

use super::trace::Trace;

impl Trace {
    /// A readable report: the recording, and where no step of the model continues.
    pub fn describe(&self, (mark, commit): (usize, usize)) -> String {
        let mut text = format!("world {} ({}), tasks {:?}", self.number, self.shape.name, self.ids);
        for (place, at) in self.marks.iter().enumerate() {
            if self.crash.as_ref().is_some_and(|crash| crash.mark == place) {
                text += "\n  THE SERVER IS KILLED";
            }
            let played = &self.clients[at.client][usize::from(at.statement.0)];
            let what = match (played.calls.get(usize::from(at.statement.1)), at.begins) {
                (Some(call), true) => {
                    format!(
                        "{:?}, native: {}, {:?}{}",
                        call.asked,
                        played.native,
                        played.level,
                        if played.asynchronous { ", asynchronous" } else { "" }
                    )
                }
                (Some(call), false) => format!("is told {:?}", call.told),
                (None, true) => format!("{:?}, xid {:?}", played.end, played.xid),
                (None, false) => "has ended".to_owned(),
            };
            let here = if place == mark { "  <== no step of the model leads on" } else { "" };
            text += &format!("\n  client {} transaction {}: {what}{here}", at.client, at.statement.0);
        }
        for (place, what) in self.commits.iter().enumerate() {
            let here = if place == commit { "  <== or here" } else { "" };
            let after = if what.afterwards { ", after the crash" } else { "" };
            text += &format!("\n  commit by {:?}{after}:{here}", what.by);
            what.changes.iter().for_each(|(key, row)| text += &format!(" {key:?}={row:?}"));
        }
        text += &format!("\n  postponed: {:?}", self.postponed);
        text
    }
}
