//! Reads traces: parses records from a file and checks them against format and schema.

use serde_json::{Map, Value};

use crate::header::{Header, Vantage};
use crate::schema::SCHEMA;

/// A parsed trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// The program or experiment.
    pub title: String,
    /// End at which the events were observed.
    pub vantage: Vantage,
    /// The events of the namespace `mptcp`, ordered by time.
    pub records: Vec<Record>,
    /// True if the last record is incomplete because the file was cut off during writing.
    pub is_cut_off: bool,
}

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Milliseconds since the trace's zero.
    pub time_ms: f64,
    /// Event name, without `mptcp:`.
    pub name: String,
    /// Event data.
    pub data: Map<String, Value>,
}

impl Record {
    /// The value of a numeric field.
    #[must_use]
    pub fn number(&self, field: &str) -> Option<u64> {
        self.data.get(field)?.as_u64()
    }

    /// The value of a time field in milliseconds.
    #[must_use]
    pub fn time(&self, field: &str) -> Option<f64> {
        self.data.get(field)?.as_f64()
    }

    /// The value of a string field.
    #[must_use]
    pub fn word(&self, field: &str) -> Option<&str> {
        self.data.get(field)?.as_str()
    }
}

/// Error in a trace and its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {record}: {what}")]
pub struct ReadError {
    /// Record number, from 1; the header is record 1.
    pub record: usize,
    /// Description of the error.
    pub what: String,
}

/// Parses a trace. Events of other namespaces are skipped. An incomplete last record is ignored, because a program may
/// still be writing it.
///
/// # Errors
/// If the text is not a JSON text sequence, its header names another format, or an event has a name or field that is
/// not in [`SCHEMA`], lacks a required field, or is older than the previous one.
pub fn read(text: &str) -> Result<Recording, ReadError> {
    let wrong = |record: usize, what: String| ReadError { record, what };
    let mut parts = text.split('\x1e');
    if parts.next() != Some("") {
        return Err(wrong(1, "does not begin with a record separator (RFC 7464)".to_owned()));
    }
    let mut parts = parts.enumerate().peekable();
    let first = parts.next().map(|(_, part)| part).unwrap_or_default();
    let (title, vantage) = header(first).map_err(|what| wrong(1, what))?;
    let mut recording = Recording { title, vantage, records: Vec::new(), is_cut_off: false };
    let mut last_ms = 0.0;
    while let Some((index, part)) = parts.next() {
        if !part.ends_with('\n') && parts.peek().is_none() {
            recording.is_cut_off = true;
            break;
        }
        let Some(record) = event(part).map_err(|what| wrong(index + 1, what))? else { continue };
        if record.time_ms < last_ms {
            let what = format!(
                "time {} is earlier than that of the previous record, {last_ms}",
                record.time_ms
            );
            return Err(wrong(index + 1, what));
        }
        last_ms = record.time_ms;
        recording.records.push(record);
    }
    Ok(recording)
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    if !text.ends_with('\n') {
        return Err("does not end with a line feed (RFC 7464)".to_owned());
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err("is not an object".to_owned()),
        Err(error) => Err(format!("is not valid JSON: {error}")),
    }
}

/// Parses the title and vantage point.
fn header(text: &str) -> Result<(String, Vantage), String> {
    let header = object(text)?;
    let schema = header.get("file_schema").and_then(Value::as_str);
    if schema != Some(Header::FILE_SCHEMA) {
        return Err(format!("file_schema is {schema:?}, not {:?}", Header::FILE_SCHEMA));
    }
    let trace = header
        .get("trace")
        .and_then(Value::as_object)
        .ok_or("the header does not contain a trace")?;
    let ours = Value::from(Header::EVENT_SCHEMA);
    let schemas = trace.get("event_schemas").and_then(Value::as_array);
    if !schemas.is_some_and(|schemas| schemas.contains(&ours)) {
        return Err(format!("event_schemas do not contain {ours}: not a Multipath TCP trace"));
    }
    let common = trace.get("common_fields");
    let format = common.and_then(|common| common.get("time_format")).and_then(Value::as_str);
    if format.is_some_and(|format| format != "relative_to_epoch") {
        return Err(format!("time_format is {format:?}, not \"relative_to_epoch\""));
    }
    let point = trace.get("vantage_point").and_then(|point| point.get("type"));
    let vantage = match point.and_then(Value::as_str) {
        Some("client") => Vantage::Client,
        Some("server") => Vantage::Server,
        other => return Err(format!("vantage_point is {other:?}, not \"client\" or \"server\"")),
    };
    let title = header.get("title").and_then(Value::as_str).unwrap_or_default();
    Ok((title.to_owned(), vantage))
}

/// Parses an event; `None` if it belongs to another namespace.
fn event(text: &str) -> Result<Option<Record>, String> {
    let mut event = object(text)?;
    let name = event.get("name").and_then(Value::as_str).ok_or("the event has no name")?;
    let Some(name) = name.strip_prefix("mptcp:").map(str::to_owned) else { return Ok(None) };
    let time_ms = event.get("time").and_then(Value::as_f64).ok_or("the event has no time")?;
    let kind = SCHEMA.iter().find(|kind| kind.name == name);
    let kind = kind.ok_or_else(|| format!("mptcp:{name} is unknown"))?;
    let Some(Value::Object(data)) = event.remove("data") else {
        return Err(format!("mptcp:{name} has no data"));
    };
    for field in kind.fields.iter().filter(|field| !field.optional) {
        if !data.contains_key(field.name) {
            return Err(format!("mptcp:{name} has no field {}", field.name));
        }
    }
    if let Some(extra) = data.keys().find(|key| kind.fields.iter().all(|field| field.name != *key))
    {
        return Err(format!("mptcp:{name} has the unknown field {extra}"));
    }
    Ok(Some(Record { time_ms, name, data }))
}
