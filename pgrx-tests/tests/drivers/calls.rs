//! A call and its result, as they are exchanged with the programs in `drivers/`.

/// A value to call with.
#[derive(Clone)]
pub enum Value {
    Integer(i32),
    Bigint(i64),
    Text(String),
    /// An array of jsonb.
    Array(Vec<String>),
}
use Value::{Array, Bigint, Integer, Text};

/// A statement with `$1` and so on, and its values.
#[derive(Clone)]
pub struct Call {
    pub statement: &'static str,
    pub values: Vec<Value>,
}

/// The result of a call: the cells of all rows with their types, or an SQLSTATE.
#[derive(Debug)]
pub enum Answer {
    Rows(Vec<(String, String)>),
    Error(String),
}

impl Call {
    pub fn new(statement: &'static str, values: Vec<Value>) -> Self {
        Self { statement, values }
    }

    /// The line that stands for it; with its values within the statement, if it is to be literal.
    pub fn line(&self, literal: bool) -> String {
        if literal {
            return self.literal();
        }
        let values = self.values.iter().map(|value| match value {
            Integer(number) => format!("\ti:{number}"),
            Bigint(number) => format!("\tb:{number}"),
            Text(text) => format!("\tt:{text}"),
            Array(texts) => format!("\ta:{}", texts.join("\x1f")),
        });
        self.statement.to_owned() + &values.collect::<String>()
    }

    /// The statement with its values in it.
    pub fn literal(&self) -> String {
        self.values.iter().zip(1..).fold(self.statement.to_owned(), |statement, (value, number)| {
            let text = match value {
                Integer(number) => number.to_string(),
                Bigint(number) => number.to_string(),
                Text(text) => format!("'{}'", text.replace('\'', "''")),
                Array(texts) => format!("ARRAY['{}']", texts.join("','")),
            };
            statement.replace(&format!("${number}"), &text)
        })
    }
}

impl Answer {
    pub fn read(line: &str) -> Self {
        let mut cells = line.split('\t');
        match cells.next() {
            Some("ok") => Self::Rows(
                cells
                    .map(|cell| {
                        let (kind, value) = cell.split_once('=').expect("a type and a value");
                        (kind.to_owned(), value.to_owned())
                    })
                    .collect(),
            ),
            Some("error") => Self::Error(cells.next().expect("an SQLSTATE").to_owned()),
            _ => panic!("not an answer: {line:?}"),
        }
    }
}
