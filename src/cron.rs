//! Cron expressions in local time.
//!
//! SQL handles local times that a time zone skips or repeats (`queue_internal.next_run`). This module does not need the
//! library to be preloaded.

use croner::Cron;
use croner::errors::CronError;
use croner::parser::{CronParser, Year};
use croner::time::{CivilDate, CivilDateTime, CivilTime, CronDateTime, Resolution, Weekday};
use pgrx::datum::Timestamp;
use pgrx::prelude::*;
use std::cmp::Ordering;

/// The fields in order, and their contents. The seconds are optional.
const FIELDS: [(&str, &str); 6] = [
    ("second", "numbers from 0 to 59"),
    ("minute", "numbers from 0 to 59"),
    ("hour", "numbers from 0 to 23"),
    ("day of the month", "numbers from 1 to 31, L, LW, numbers with W"),
    ("month", "numbers from 1 to 12, names from JAN to DEC"),
    ("day of the week", "numbers from 0 to 7, names from SUN to SAT, either with #1 to #5 or L"),
];
const DAY_OF_MONTH: usize = 3;
const MONTH: usize = 4;
const DAY_OF_WEEK: usize = 5;
const MONTHS: &str = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC";
const DAYS: &str = "SUN MON TUE WED THU FRI SAT";

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;

/// `queue_internal.cron_next`: the first local time after `after` that the expression matches; none if there is none
/// before the year 5000.
#[pg_extern(sql = false)]
fn cron_next(cron: &[u8], after: Timestamp) -> Option<Timestamp> {
    let cron = read(cron).unwrap_or_else(|reason| {
        // Only a row that queue.schedule() did not write can have an invalid expression.
        ereport!(ERROR, PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, "invalid cron expression", reason);
    });
    let after = Local(after.into());
    if !(1..5000).contains(&after.date().0) {
        return None;
    }
    let next = cron.find_next_occurrence(&after, false).ok()?;
    Timestamp::try_from(next.0).ok()
}

/// `queue_internal.cron_error`: what is wrong with the expression; none if it is valid.
#[pg_extern(sql = false)]
fn cron_error(cron: &[u8]) -> Option<String> {
    read(cron).err()
}

/// A text in the encoding of the database, which has the layout of the bytea that pgrx passes as bytes.
fn read(cron: &[u8]) -> Result<Cron, String> {
    let cron = std::str::from_utf8(cron).map_err(|_| "A field may only have ASCII characters.".to_owned())?;
    parse(cron)
}

fn parse(cron: &str) -> Result<Cron, String> {
    let mut cron = cron.trim().to_ascii_uppercase();
    if cron.starts_with('@') {
        cron =
            match cron.as_str() {
                "@YEARLY" | "@ANNUALLY" => "0 0 1 1 *",
                "@MONTHLY" => "0 0 1 * *",
                "@WEEKLY" => "0 0 * * 0",
                "@DAILY" | "@MIDNIGHT" => "0 0 * * *",
                "@HOURLY" => "0 * * * *",
                _ => return Err(
                    "The macros are @yearly, @annually, @monthly, @weekly, @daily, @midnight and @hourly."
                        .into(),
                ),
            }
            .into();
    }
    let fields: Vec<&str> = cron.split_ascii_whitespace().collect();
    let omitted = match fields.len() {
        5 => 1,
        6 => 0,
        count => return Err(format!("It has {count} fields instead of five, or six with seconds first.")),
    };
    let parser = CronParser::builder().year(Year::Disallowed).build();
    let numbered = || (omitted..).zip(&fields);
    if numbered().all(|(position, field)| is_well_formed(field, position))
        && let Ok(cron) = parser.parse(&fields.join(" "))
    {
        return Ok(cron);
    }
    // Find the field with the error.
    let mut wrong = numbered().filter(|(position, field)| {
        let mut alone = ["*"; 6];
        alone[*position] = field;
        !is_well_formed(field, *position) || parser.parse(&alone.join(" ")).is_err()
    });
    let (position, field) = wrong.next().ok_or("Its fields do not go together.")?;
    let (name, values) = FIELDS[position];
    Err(format!(
        "\"{field}\" in the field {name} is not a list of {values}, ranges like 1-5, and steps like */2 or 1-5/2."
    ))
}

/// The parser replaces names anywhere in a field, so that 1MON would be 11, and ignores missing elements of a list.
/// With a field without any value it would search for very long.
fn is_well_formed(field: &str, position: usize) -> bool {
    let number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let name = |word: &str, names: &str| names.split(' ').any(|name| name == word);
    field.split(',').all(|item| {
        !item.is_empty()
            && item.split(['*', '/', '-', '#', '?', '+']).all(|word| {
                let day = word.strip_suffix('L').unwrap_or(word);
                match position {
                    _ if word.is_empty() || number(word) => true,
                    DAY_OF_MONTH => ["L", "LW"].contains(&word) || word.strip_suffix('W').is_some_and(number),
                    MONTH => name(word, MONTHS),
                    DAY_OF_WEEK => number(day) || name(day, DAYS) || (word == "L" && item.contains('#')),
                    _ => false,
                }
            })
    })
}

/// A local time, in microseconds since 2000.
#[derive(Clone)]
struct Local(i64);

impl Local {
    fn julian_day(&self) -> i32 {
        // The days of any 64-bit timestamp fit.
        self.0.div_euclid(DAY) as i32 + pg_sys::POSTGRES_EPOCH_JDATE as i32
    }

    fn date(&self) -> (i32, i32, i32) {
        let (mut year, mut month, mut day) = (0, 0, 0);
        // SAFETY: arithmetic that writes to the three integers.
        unsafe { pg_sys::j2date(self.julian_day(), &mut year, &mut month, &mut day) };
        (year, month, day)
    }
}

impl CronDateTime for Local {
    fn to_civil(&self) -> CivilDateTime {
        let (year, month, day) = self.date();
        let second = (self.0.rem_euclid(DAY) / SECOND) as u32;
        CivilDateTime::new(
            CivilDate::from_parts_unchecked(year, month as u32, day as u32),
            CivilTime::from_parts_unchecked(second / 3600, second / 60 % 60, second % 60),
        )
    }

    fn civil_weekday(&self) -> Weekday {
        // SAFETY: arithmetic.
        Weekday::from_days_from_sunday(unsafe { pg_sys::j2day(self.julian_day()) } as u32)
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Self>, CronError> {
        // SAFETY: arithmetic.
        let julian = unsafe { pg_sys::date2j(civil.year(), civil.month() as i32, civil.day() as i32) };
        let day = i64::from(julian) - i64::from(pg_sys::POSTGRES_EPOCH_JDATE);
        let second = i64::from(civil.hour() * 3600 + civil.minute() * 60 + civil.second());
        Ok(Resolution::Single(Local(day * DAY + second * SECOND)))
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        seconds.checked_mul(SECOND).and_then(|time| self.0.checked_add(time)).map(Local)
    }

    fn cmp_instant(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}
