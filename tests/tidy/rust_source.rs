//! Rust source with its comments and literals told apart from its code.
//!
//! A scanner, not a parser: it knows nested comments, strings, raw strings, characters and
//! lifetimes, and nothing else. All views have the length and the line breaks of the original, so
//! a position in one is a position in all.

/// The views of one Rust file.
pub(crate) struct RustSource {
    /// The code; comments and the contents of literals are blank.
    pub(crate) code: String,
    /// The comments; all else is blank.
    pub(crate) comments: String,
}

/// What a stretch of source is.
#[derive(Clone, Copy, PartialEq)]
enum Stretch {
    Code,
    Comment,
    Literal,
}

impl RustSource {
    /// Scans `text`.
    pub(crate) fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut code = Vec::with_capacity(bytes.len());
        let mut comments = Vec::with_capacity(bytes.len());
        let mut at = 0;
        while at < bytes.len() {
            let (stretch, len) = next_stretch(bytes, at);
            for &byte in &bytes[at..at + len] {
                let blank = if byte == b'\n' { b'\n' } else { b' ' };
                code.push(if stretch == Stretch::Code { byte } else { blank });
                comments.push(if stretch == Stretch::Comment { byte } else { blank });
            }
            at += len;
        }
        let view = |bytes| String::from_utf8(bytes).expect("whole characters are blanked");
        Self { code: view(code), comments: view(comments) }
    }

    /// Returns the line of byte `at`, counted from 1.
    pub(crate) fn line_of(&self, at: usize) -> usize {
        self.code.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count() + 1
    }

    /// Returns the identifiers and keywords of the code with their positions.
    pub(crate) fn words(&self) -> impl Iterator<Item = (usize, &str)> {
        let bytes = self.code.as_bytes();
        let mut at = 0;
        std::iter::from_fn(move || {
            while at < bytes.len() && !is_word_byte(bytes[at]) {
                at += 1;
            }
            let start = at;
            while at < bytes.len() && is_word_byte(bytes[at]) {
                at += 1;
            }
            (start < at).then(|| (start, &self.code[start..at]))
        })
    }
}

/// Tells whether `byte` can be part of an identifier.
pub(crate) fn is_word_byte(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

/// Returns what starts at `at`, and its length in bytes.
fn next_stretch(bytes: &[u8], at: usize) -> (Stretch, usize) {
    let rest = &bytes[at..];
    let after_word = at > 0 && is_word_byte(bytes[at - 1]);
    if rest.starts_with(b"//") {
        let len = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        return (Stretch::Comment, len);
    }
    if rest.starts_with(b"/*") {
        return (Stretch::Comment, block_comment_len(rest));
    }
    if rest[0] == b'"' {
        return (Stretch::Literal, quoted_len(rest));
    }
    if !after_word && let Some(len) = raw_string_len(rest) {
        return (Stretch::Literal, len);
    }
    if rest[0] == b'\''
        && let Some(len) = character_len(rest)
    {
        return (Stretch::Literal, len);
    }
    (Stretch::Code, 1)
}

/// Returns the length of the comment, nested ones included, that opens `rest`.
fn block_comment_len(rest: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Returns the length of the string that opens `rest`, quotes included.
fn quoted_len(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Returns the length of the raw string that opens `rest`, if one does.
fn raw_string_len(rest: &[u8]) -> Option<usize> {
    let prefix = [&b"br"[..], b"cr", b"r"].into_iter().find(|prefix| rest.starts_with(prefix))?;
    let hashes = rest[prefix.len()..].iter().take_while(|&&byte| byte == b'#').count();
    let opening = prefix.len() + hashes;
    if rest.get(opening) != Some(&b'"') {
        return None;
    }
    let mut closing = vec![b'"'];
    closing.resize(hashes + 1, b'#');
    let body = &rest[opening + 1..];
    let found = body.windows(closing.len()).position(|window| window == closing);
    Some(found.map_or(rest.len(), |at| opening + 1 + at + closing.len()))
}

/// Returns the length of the character literal that opens `rest`; `None` for a lifetime.
fn character_len(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        let close = rest.iter().skip(3).position(|&byte| byte == b'\'')?;
        return Some(close + 4);
    }
    // One character of one to four bytes, then the closing quote: a lifetime has none there.
    let first = *rest.get(1)?;
    let width = match first {
        0..0x80 => 1,
        0x80..0xE0 => 2,
        0xE0..0xF0 => 3,
        _ => 4,
    };
    (rest.get(1 + width) == Some(&b'\'')).then_some(width + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, code: &str, comments: &str) {
        let source = RustSource::new(text);
        assert_eq!(source.code, code, "code of {text:?}");
        assert_eq!(source.comments, comments, "comments of {text:?}");
    }

    #[test]
    fn comments_end_with_their_line_or_their_outermost_bracket() {
        check("a // b\nc", "a     \nc", "  // b\n ");
        check("a /* b /* c */ d */ e", "a                   e", "  /* b /* c */ d */  ");
    }

    #[test]
    fn literals_are_blank_and_do_not_open_comments() {
        check(r#"f("// {", '{', b'"')"#, "f(      ,    , b   )", &" ".repeat(20));
        check("r#\"a\"b\"# x", "         x", &" ".repeat(10));
        check(r#"'\'' + '\u{1F600}' x"#, "     +             x", &" ".repeat(20));
        check("'é' y", "     y", &" ".repeat(6));
    }

    #[test]
    fn lifetimes_are_code() {
        check("fn f<'a>(x: &'a u8)", "fn f<'a>(x: &'a u8)", &" ".repeat(19));
    }

    #[test]
    fn an_identifier_that_ends_in_r_is_no_raw_string() {
        check("br#x other\"s\"", "br#x other   ", &" ".repeat(13));
    }

    #[test]
    fn lines_are_counted_from_one() {
        let source = RustSource::new("a\nb\nc");
        assert_eq!(source.line_of(0), 1);
        assert_eq!(source.line_of(4), 3);
        assert_eq!(source.words().map(|(at, _)| at).collect::<Vec<_>>(), [0, 2, 4]);
    }
}
