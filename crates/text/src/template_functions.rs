//! What chat templates may call beyond Jinja itself, as transformers provides it.
//!
//! `raise_exception(message)`, `strftime_now(format)` and the filter `tojson` with Python's
//! `json.dumps` layout; and Python's way to print numbers. The time is data, given with each render, in UTC.

use crate::settled_values::{settled_value, text_bytes};
use minijinja::value::{Kwargs, StringInput, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;
use serde_json::ser::Formatter;
use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

/// What a template said through `raise_exception`; the source of the render's error.
#[derive(Clone, Debug)]
pub(crate) struct RaisedMessage(pub(crate) String);

impl fmt::Display for RaisedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RaisedMessage {}

/// Ends the render; the template refuses its input.
pub(crate) fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "the template refuses its input")
        .with_source(RaisedMessage(message.to_owned())))
}

/// Returns the function `strftime_now` for a render at `now`.
pub(crate) fn strftime_at(now: SystemTime) -> Value {
    Value::from_function(move |format: &str| -> Result<String, Error> {
        let failed = |source: jiff::Error| {
            Error::new(ErrorKind::InvalidOperation, "strftime_now cannot write the time")
                .with_source(source)
        };
        let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
        let time = jiff::Timestamp::from_second(seconds).map_err(failed)?;
        jiff::fmt::strtime::format(format, &time.to_zoned(jiff::tz::TimeZone::UTC)).map_err(failed)
    })
}

/// Writes a value as `json.dumps` does, with `indent`, `separators`, `sort_keys` and
/// `ensure_ascii`, which is false by default as in transformers.
pub(crate) fn to_json(
    state: &State<'_, '_>,
    value: &Value,
    options: Kwargs,
) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let refused = |message: &'static str| Err(Error::new(ErrorKind::InvalidOperation, message));
    if indent.is_some_and(|indent| indent > MAX_INDENT) {
        return refused("tojson does not support such an indent");
    }
    if value.is_undefined() {
        return refused("tojson cannot write an undefined value");
    }
    let default_comma = if indent.is_some() { "," } else { ", " };
    let (comma, colon) = match separators.as_deref() {
        None => (default_comma.to_owned(), ": ".to_owned()),
        Some([comma, colon]) => (comma.clone(), colon.clone()),
        Some(_) => return refused("tojson needs two separators"),
    };
    let escapes_non_ascii = ensure_ascii == Some(true);
    let layout = PythonLayout { indent, comma, colon, escapes_non_ascii, depth: 0, empty: true };
    if sort_keys != Some(true) {
        return serialize(state, value, layout);
    }
    // The text of a lazy value is bounded where the value itself is not.
    let text = serialize(state, value, layout.clone())?;
    let mut json: serde_json::Value = serde_json::from_str(&text).map_err(unwritable)?;
    json.sort_all_objects();
    serialize(state, &json, layout)
}

fn unwritable(source: serde_json::Error) -> Error {
    Error::new(ErrorKind::InvalidOperation, "tojson cannot write the value").with_source(source)
}

/// Bytes of JSON that cost as much as one of the template's instructions: walking a value is
/// slower than copying text. The template engine's own filter charges the same.
const BYTES_PER_FUEL: u64 = 4;

fn serialize(
    state: &State<'_, '_>,
    value: &impl Serialize,
    layout: PythonLayout,
) -> Result<String, Error> {
    let fuel = state.fuel_levels().map_or(u64::MAX, |(_, remaining)| remaining);
    let limit = usize::try_from(fuel.saturating_mul(BYTES_PER_FUEL)).unwrap_or(usize::MAX);
    let mut text = BoundedText { bytes: Vec::new(), limit };
    let written = value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, layout));
    if text.bytes.len() >= limit {
        return Err(ErrorKind::OutOfFuel.into());
    }
    written.map_err(unwritable)?;
    state.consume_fuel(text.bytes.len() as u64 / BYTES_PER_FUEL)?;
    Ok(String::from_utf8_lossy(&text.bytes).into_owned())
}

/// Takes no more than `limit` bytes.
#[derive(Debug)]
struct BoundedText {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.limit - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Spaces per level that no sensible template passes; bounds the output of a hostile one.
const MAX_INDENT: usize = 16;

/// Python's way to put commas, colons and line breaks, and to write numbers.
#[derive(Clone, Debug)]
struct PythonLayout {
    indent: Option<usize>,
    comma: String,
    colon: String,
    /// Characters beyond ASCII are written as `\u` and four hexadecimal digits.
    escapes_non_ascii: bool,
    depth: usize,
    /// Nothing was written into the innermost list or object yet.
    empty: bool,
}

impl PythonLayout {
    fn open<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.empty {
            self.break_line(writer)?;
        }
        self.empty = false;
        writer.write_all(bracket)
    }

    fn begin_item<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        if !self.empty {
            writer.write_all(self.comma.as_bytes())?;
        }
        self.empty = false;
        self.break_line(writer)
    }

    fn break_line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        writer.write_all(" ".repeat(indent * self.depth).as_bytes())
    }
}

impl Formatter for PythonLayout {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(python_float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.escapes_non_ascii || fragment.is_ascii() {
            return writer.write_all(fragment.as_bytes());
        }
        for unit in fragment.encode_utf16() {
            match u8::try_from(unit) {
                Ok(byte) if byte.is_ascii() => writer.write_all(&[byte])?,
                Ok(_) | Err(_) => write!(writer, "\\u{unit:04x}")?,
            }
        }
        Ok(())
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, w: &mut W, _: bool) -> io::Result<()> {
        self.begin_item(w)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, w: &mut W, _: bool) -> io::Result<()> {
        self.begin_item(w)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.colon.as_bytes())
    }
}

/// Writes a number as Python's `repr`: the shortest digits that mean it, with an exponent of at
/// least two digits below 1e-4 and from 1e16.
fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        Ok(_) | Err(_) => format!("{value:?}"),
    }
}

/// Returns a number with a fraction as Python prints it.
fn as_python_float(value: &Value) -> Option<String> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    let number = f64::try_from(value.clone()).ok()?;
    number.is_finite().then(|| python_float(number))
}

/// Writes what a template prints, once it is bounded; only numbers with a fraction differ from the
/// engine's own way.
pub(crate) fn print(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match as_python_float(value) {
        Some(number) => Ok(out.write_str(&number)?),
        None => {
            let value = settled_value(state, value)?;
            minijinja::escape_formatter(out, state, &value)
        }
    }
}

/// The filter `string`: Python's `str`.
pub(crate) fn to_string(state: &mut State<'_, '_>, value: &Value) -> Result<Value, Error> {
    let value = settled_value(state, value)?;
    if value.as_str().is_some() {
        return Ok(value);
    }
    Ok(Value::from(as_python_float(&value).unwrap_or_else(|| value.to_string())))
}

/// The filter `join`, of bounded lists.
pub(crate) fn join(
    state: &mut State<'_, '_>,
    value: &Value,
    joiner: Option<StringInput<'_>>,
    attribute: Option<&str>,
    options: Kwargs,
) -> Result<Value, Error> {
    let value = settled_value(state, value)?;
    minijinja::filters::join(state, &value, joiner, attribute, options)
}

/// Longest run of digits in a format string: a width, which says how long the text becomes.
const MAX_WIDTH_DIGITS: usize = 4;

/// Python's methods on strings, lists and dicts.
pub(crate) fn python_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match (method, value.as_str()) {
        ("format", Some(format)) => charge_format(state, format, args)?,
        ("join", Some(_)) => {
            let settled = args.iter().map(|list| settled_value(state, list));
            let settled = settled.collect::<Result<Vec<_>, _>>()?;
            return unknown_method_callback(state, value, method, &settled);
        }
        _ => {}
    }
    unknown_method_callback(state, value, method, args)
}

/// Pays for what `format` may become, before it does: every field as long as the longest argument.
fn charge_format(state: &mut State<'_, '_>, format: &str, args: &[Value]) -> Result<(), Error> {
    /// Bytes of text that cost as much as one of the template's instructions, as elsewhere.
    const BYTES_PER_FUEL: usize = 64;
    let mut width = 0;
    for digits in format.split(|c: char| !c.is_ascii_digit()) {
        if digits.len() > MAX_WIDTH_DIGITS {
            return Err(ErrorKind::OutOfFuel.into());
        }
        width = width.max(digits.parse().unwrap_or(0));
    }
    for arg in args {
        width = width.max(text_bytes(state, arg)?);
    }
    let num_fields = format.matches('{').count();
    state.consume_fuel((num_fields.saturating_mul(width) / BYTES_PER_FUEL) as u64)
}

/// Tells whether Python could iterate over a value: not over `none`, which templates rely on.
pub(crate) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && (value.as_str().is_some() || value.try_iter().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::Environment;

    fn check(expression: &str, value: &serde_json::Value, expected: &str) {
        let mut environment = Environment::new();
        environment.add_filter("tojson", to_json);
        let source = format!("{{{{ {expression} }}}}");
        let context = minijinja::context! { x => Value::from(minijinja::value::Serde(value)) };
        assert_eq!(environment.render_str(&source, context).unwrap(), expected, "{expression}");
    }

    #[test]
    fn tojson_lays_out_as_python_does() {
        let value = serde_json::json!({"b": [1, 2.5, null, true], "a": {"é<": "\"\n"}, "c": []});
        check("x | tojson", &value, r#"{"b": [1, 2.5, null, true], "a": {"é<": "\"\n"}, "c": []}"#);
        check(
            "x | tojson(sort_keys=true, separators=(',', ':'))",
            &value,
            r#"{"a":{"é<":"\"\n"},"b":[1,2.5,null,true],"c":[]}"#,
        );
        check(
            "x | tojson(indent=2)",
            &serde_json::json!({"b": [1, {}], "c": []}),
            "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"c\": []\n}",
        );
    }

    #[test]
    fn tojson_writes_numbers_and_escapes_as_python_does() {
        let numbers = serde_json::json!([1e-7, 0.0001, 0.00001, 1e15, 1e16, 1.5e300, -0.0, 2, 1.0]);
        check(
            "x | tojson",
            &numbers,
            "[1e-07, 0.0001, 1e-05, 1000000000000000.0, 1e+16, 1.5e+300, -0.0, 2, 1.0]",
        );
        let text = serde_json::json!({"é": "a🙂\u{7f}"});
        check("x | tojson(ensure_ascii=true)", &text, "{\"\\u00e9\": \"a\\ud83d\\ude42\u{7f}\"}");
        check("x | tojson(ensure_ascii=false)", &text, "{\"é\": \"a🙂\u{7f}\"}");
    }

    #[test]
    fn what_python_can_iterate_over_is_iterable() {
        let check = |value: Value, expected| assert_eq!(is_iterable(&value), expected, "{value:?}");
        check(Value::from(()), false);
        check(Value::from(1), false);
        check(Value::from(true), false);
        check(Value::UNDEFINED, true);
        check(Value::from("text"), true);
        check(Value::from(vec![1]), true);
        check(Value::from_pairs([("a", 1)]), true);
    }

    #[test]
    fn time_is_written_in_utc() {
        let mut environment = Environment::new();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_722_384_000);
        environment.add_global("strftime_now", strftime_at(now));
        let render = |source| environment.render_str(source, ());
        assert_eq!(render("{{ strftime_now('%d %b %Y') }}").unwrap(), "31 Jul 2024");
        assert_eq!(render("{{ strftime_now('%Y-%m-%d %H:%M') }}").unwrap(), "2024-07-31 00:00");
        assert!(render("{{ strftime_now('%') }}").is_err());
    }
}
