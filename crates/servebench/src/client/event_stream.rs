//! Lines of a stream of server-sent events, however the network cuts it.
//!
//! Every line `data:` is one event: no OpenAI-compatible server spreads one over several lines, and
//! some forget the empty line that should end it, for which a reader by the book would wait.
//! Comments (`: ping`), empty lines and other fields are skipped. A line has any length; only the
//! part of one that has not ended yet is copied.

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamLine<'a> {
    /// An event's data, without spaces around it.
    Data(&'a [u8]),
    /// The data of a field `error`, in which some servers put what went wrong.
    Error(&'a [u8]),
}

/// Cuts bytes into lines.
#[derive(Debug, Default)]
pub struct EventStream {
    /// Start of a line whose end has not arrived.
    partial: Vec<u8>,
}

impl EventStream {
    /// Takes the next bytes and hands on each line that they end, until `on_line` returns false.
    pub fn feed(&mut self, mut bytes: &[u8], mut on_line: impl FnMut(StreamLine<'_>) -> bool) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (head, tail) = bytes.split_at(end);
            bytes = &tail[1..];
            let goes_on = if self.partial.is_empty() {
                parse_line(head).is_none_or(&mut on_line)
            } else {
                self.partial.extend_from_slice(head);
                let goes_on = parse_line(&self.partial).is_none_or(&mut on_line);
                self.partial.clear();
                goes_on
            };
            if !goes_on {
                return;
            }
        }
        self.partial.extend_from_slice(bytes);
    }

    /// Hands on a last line that no line break ended.
    pub fn finish(&mut self, mut on_line: impl FnMut(StreamLine<'_>) -> bool) {
        if let Some(line) = parse_line(&self.partial) {
            on_line(line);
        }
        self.partial.clear();
    }
}

fn parse_line(line: &[u8]) -> Option<StreamLine<'_>> {
    if let Some(data) = line.strip_prefix(b"data:") {
        return Some(StreamLine::Data(data.trim_ascii()));
    }
    line.strip_prefix(b"error:").map(|data| StreamLine::Error(data.trim_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `bytes` in the given pieces and returns what the lines say.
    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let mut found = Vec::new();
        let mut note = |line: StreamLine<'_>| {
            found.push(match line {
                StreamLine::Data(data) => String::from_utf8_lossy(data).into_owned(),
                StreamLine::Error(data) => format!("error {}", String::from_utf8_lossy(data)),
            });
            true
        };
        let mut stream = EventStream::default();
        for piece in pieces {
            stream.feed(piece, &mut note);
        }
        stream.finish(&mut note);
        found
    }

    const STREAM: &str = ": ping\r\n\r\ndata: {\"a\":\"\u{e9}\u{1f600}\"}\r\n\r\nevent: x\ndata:two\n\
                          id: 3\n\nerror: {}\n\n:\n\ndata:\ndata: [DONE]";

    #[test]
    fn a_cut_at_any_two_bytes_changes_nothing() {
        let bytes = STREAM.as_bytes();
        let expected = lines(&[bytes]);
        assert_eq!(expected, ["{\"a\":\"\u{e9}\u{1f600}\"}", "two", "error {}", "", "[DONE]"]);
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(lines(&pieces), expected, "cut at {first} and {second}");
            }
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(lines(&single), expected);
    }

    #[test]
    fn a_line_of_megabytes_arrives_whole() {
        let text = "x".repeat(3 << 20);
        let stream = format!("data: {text}\n\n");
        let pieces: Vec<&[u8]> = stream.as_bytes().chunks(1000).collect();
        assert_eq!(lines(&pieces), [text]);
    }

    #[test]
    fn nothing_is_read_after_the_caller_has_seen_enough() {
        let mut count = 0;
        EventStream::default().feed(b"data: 1\ndata: 2\ndata: 3\n", |_| {
            count += 1;
            count < 2
        });
        assert_eq!(count, 2);
    }
}
