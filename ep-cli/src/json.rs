//! JSON for `--json`: one object per line, its members in the order in which they were added.

use std::fmt::{self, Write};

/// A JSON object on one line.
#[derive(Debug, Clone, Default)]
pub(crate) struct Object {
    members: String,
}

/// What a member or an item of a list may be.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with one digit behind the point.
    Tenths(f64),
    /// A number with two digits behind the point.
    Hundredths(f64),
    /// A text.
    Text(String),
    /// An object.
    Object(Object),
    /// A list.
    List(Vec<Value>),
}

impl Object {
    pub(crate) fn new() -> Object {
        Object::default()
    }

    /// Adds a member.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Object {
        if !self.members.is_empty() {
            self.members.push(',');
        }
        self.members.push_str(&format!("{}:{}", Value::from(name), value.into()));
        self
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}}}", self.members)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(value) => value.fmt(f),
            Value::Int(value) => value.fmt(f),
            Value::Tenths(value) => write!(f, "{value:.1}"),
            Value::Hundredths(value) => write!(f, "{value:.2}"),
            Value::Text(text) => quoted(text, f),
            Value::Object(object) => object.fmt(f),
            Value::List(items) => {
                f.write_char('[')?;
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        f.write_char(',')?;
                    }
                    item.fmt(f)?;
                }
                f.write_char(']')
            }
        }
    }
}

fn quoted(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_char('"')?;
    for letter in text.chars() {
        match letter {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            control if control < ' ' => write!(f, "\\u{:04x}", u32::from(control))?,
            other => f.write_char(other)?,
        }
    }
    f.write_char('"')
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Value {
        Value::Text(text.clone())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::Int(value)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Value {
        Value::Int(i64::from(value))
    }
}

/// A count; one that is larger than any that can be told is told as the largest.
impl From<u64> for Value {
    fn from(value: u64) -> Value {
        Value::Int(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Value {
        Value::from(value as u64)
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Value {
        Value::Object(object)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Value {
        Value::List(items.into_iter().map(Into::into).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_one_line_with_everything_escaped() {
        let object = Object::new()
            .with("text", "a \"b\"\\\n\u{1}é")
            .with("numbers", vec![1_i64, -2])
            .with("none", None::<bool>)
            .with("share", Value::Tenths(5.25))
            .with("time", Value::Hundredths(0.126))
            .with("inner", Object::new().with("yes", true));
        let text = r#"{"text":"a \"b\"\\\n\u0001é","numbers":[1,-2],"none":null,"share":5.2,"time":0.13,"inner":{"yes":true}}"#;
        assert_eq!(object.to_string(), text);
    }
}
