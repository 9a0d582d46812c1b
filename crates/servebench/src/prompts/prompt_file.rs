//! Prompts from a file: JSON Lines with `prompt`, `messages` or `text`, or a text with one a line.

use crate::error::ServebenchError;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// A prompt as a file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FilePrompt {
    /// Everything that it says, in one text.
    pub(super) text: String,
    /// What the user says in each turn, where the file tells the turns.
    pub(super) user_turns: Vec<String>,
    /// Tokens of its output.
    pub(super) output_len: Option<u32>,
    /// Number of its line, from 1.
    pub(super) line: usize,
}

impl FilePrompt {
    /// Makes a prompt that is a text and no more.
    pub(super) fn of_text(text: String, line: usize) -> Self {
        Self { text, user_turns: Vec::new(), output_len: None, line }
    }
}

/// Reads a file of prompts: `.jsonl` one object a line, anything else one prompt a line. Empty lines
/// are skipped.
///
/// # Errors
/// When the file cannot be read, a line is not as it should be, or there are no prompts.
pub(super) fn read(path: &Path) -> Result<Vec<FilePrompt>, ServebenchError> {
    let is_json =
        |extension: &OsStr| ["jsonl", "ndjson", "json"].iter().any(|&name| extension == name);
    if path.extension().is_some_and(is_json) {
        read_objects(path)
    } else {
        read_lines(path, |text, line| Ok(FilePrompt::of_text(text.trim().to_owned(), line)))
    }
}

/// Reads a file with one object a line, whatever its name.
///
/// # Errors
/// As [`read`].
pub(super) fn read_objects(path: &Path) -> Result<Vec<FilePrompt>, ServebenchError> {
    read_lines(path, parse_object)
}

fn read_lines(
    path: &Path,
    parse: impl Fn(&str, usize) -> Result<FilePrompt, String>,
) -> Result<Vec<FilePrompt>, ServebenchError> {
    let source = |source| ServebenchError::File { action: "read", path: path.to_owned(), source };
    let text = fs::read_to_string(path).map_err(source)?;
    // Editors of some systems put a byte order mark in front.
    let text = text.trim_start_matches('\u{feff}');
    let wrong = |line, message| ServebenchError::Line { path: path.to_owned(), line, message };
    let mut prompts = Vec::new();
    for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        prompts.push(parse(text, line).map_err(|message| wrong(line, message))?);
    }
    if prompts.is_empty() {
        return Err(wrong(1, "the file has no prompts".to_owned()));
    }
    Ok(prompts)
}

fn parse_object(text: &str, line: usize) -> Result<FilePrompt, String> {
    const EXPECTED: &str = "expected an object with \"prompt\", \"messages\" or \"text\"";
    let row: Value = serde_json::from_str(text).map_err(|error| format!("{EXPECTED}: {error}"))?;
    let row = row.as_object().ok_or(EXPECTED)?;
    let (mut user_turns, mut texts) = (Vec::new(), Vec::new());
    if let Some(prompt) = row.get("prompt").or_else(|| row.get("text")) {
        texts.push(prompt.as_str().ok_or("\"prompt\" or \"text\" is not a text")?.to_owned());
    } else {
        let messages = row.get("messages").ok_or(EXPECTED)?.as_array();
        for message in messages.ok_or("\"messages\" is not a list")? {
            let text = message_text(message).ok_or("a message has no text as \"content\"")?;
            if message.get("role").and_then(Value::as_str) == Some("user") {
                user_turns.push(text.clone());
            }
            texts.push(text);
        }
    }
    let text = texts.join("\n\n");
    if text.trim().is_empty() {
        return Err("the prompt is empty".to_owned());
    }
    let output_len = row.get("output_len").or_else(|| row.get("max_tokens"));
    let output_len = output_len.filter(|length| !length.is_null()).map(|length| {
        let length = length.as_u64().and_then(|length| u32::try_from(length).ok());
        length.filter(|&length| length > 0).ok_or("the output's length is not a number of tokens")
    });
    Ok(FilePrompt { text, user_turns, output_len: output_len.transpose()?, line })
}

/// Returns what a message says, its content a text or a list of texts.
fn message_text(message: &Value) -> Option<String> {
    match message.get("content")? {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts: Option<Vec<&str>> =
                parts.iter().map(|part| part.get("text").and_then(Value::as_str)).collect();
            Some(texts?.join("\n"))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(name: &str, text: &str) -> Result<Vec<FilePrompt>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        read(&path).map_err(|error| error.to_string())
    }

    fn message(name: &str, text: &str) -> String {
        read_text(name, text).unwrap_err()
    }

    #[test]
    fn objects_with_each_kind_of_prompt_are_read() {
        let text = r#"{"prompt": "one", "output_len": 7}

            {"text": "two", "max_tokens": 8}
            {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "three"}]}], "max_tokens": null}
        "#;
        let prompts = read_text("a.jsonl", text).unwrap();
        let texts: Vec<&str> = prompts.iter().map(|prompt| prompt.text.as_str()).collect();
        assert_eq!(texts, ["one", "two", "be brief\n\nthree"]);
        let lengths: Vec<Option<u32>> = prompts.iter().map(|prompt| prompt.output_len).collect();
        assert_eq!(lengths, [Some(7), Some(8), None]);
        assert_eq!((prompts[2].line, prompts[2].user_turns[0].as_str()), (4, "three"));
    }

    #[test]
    fn a_text_has_a_prompt_a_line() {
        let prompts = read_text("a.txt", "\u{feff}one \n\n{\"prompt\": 2}\r\n").unwrap();
        let texts: Vec<&str> = prompts.iter().map(|prompt| prompt.text.as_str()).collect();
        assert_eq!(texts, ["one", "{\"prompt\": 2}"]);
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        let bad = message("a.jsonl", "{\"prompt\": \"x\"}\n\n{\"prompt\": 3}");
        assert!(bad.contains("a.jsonl, line 3: \"prompt\" or \"text\" is not a text"), "{bad}");
        assert!(message("a.jsonl", "{\"question\": 3}").contains("line 1: expected an object"));
        assert!(message("a.json", "[\n]").contains("line 1: expected an object"));
        assert!(message("a.jsonl", r#"{"text": "x", "max_tokens": -1}"#).contains("length"));
        assert!(message("a.jsonl", r#"{"messages": [{"role": "user"}]}"#).contains("a message"));
        assert!(message("a.jsonl", r#"{"prompt": " "}"#).contains("empty"));
        assert!(message("a.txt", "\n \n").contains("no prompts"));
    }
}
