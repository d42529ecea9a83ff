//! Well-known shapes of tokens, for secrets that nobody named.
//!
//! The list is short on purpose: each entry is a prefix that means nothing else, followed by enough
//! characters of a narrow set. What has no such prefix (passwords, AWS secret keys, hex digests) cannot be
//! told from ordinary output and is not guessed at; it can be named as a secret.

use std::ops::Range;

use super::{MANY, is_blank};
use crate::limits::PRIVATE_KEY_BYTES_MAX;

/// A prefix and what follows it.
struct Shape {
    prefix: &'static [u8],
    /// Which characters follow.
    body: fn(u8) -> bool,
    /// How many of them at least.
    body_min: usize,
    /// How many of them at most; a longer run is something else.
    body_max: usize,
    /// How many digits there must be among them, which ordinary words do not have.
    digits_min: usize,
    /// Whether it has to begin a word. It must where the body can hold the prefix again: each of many
    /// prefixes in one long word would be followed to the word's end, and the cost would be the square of its
    /// length.
    word: bool,
}

const ANY: usize = usize::MAX;

#[rustfmt::skip]
const SHAPES: &[Shape] = &[
    // AWS key ids, long-lived and temporary.
    Shape { prefix: b"AKIA", body: upper, body_min: 16, body_max: 16, digits_min: 0, word: true },
    Shape { prefix: b"ASIA", body: upper, body_min: 16, body_max: 16, digits_min: 0, word: true },
    // GitHub: personal, OAuth, user, server and refresh tokens, and the fine-grained ones.
    Shape { prefix: b"ghp_", body: alnum, body_min: 36, body_max: ANY, digits_min: 0, word: false },
    Shape { prefix: b"gho_", body: alnum, body_min: 36, body_max: ANY, digits_min: 0, word: false },
    Shape { prefix: b"ghu_", body: alnum, body_min: 36, body_max: ANY, digits_min: 0, word: false },
    Shape { prefix: b"ghs_", body: alnum, body_min: 36, body_max: ANY, digits_min: 0, word: false },
    Shape { prefix: b"ghr_", body: alnum, body_min: 36, body_max: ANY, digits_min: 0, word: false },
    Shape { prefix: b"github_pat_", body: wordy, body_min: 36, body_max: ANY, digits_min: 0, word: true },
    Shape { prefix: b"glpat-", body: wordy, body_min: 20, body_max: ANY, digits_min: 0, word: true },
    // OpenAI, Anthropic, DeepSeek and others. scikit-learn has CSS classes that begin so, but they have no
    // digits.
    Shape { prefix: b"sk-", body: wordy, body_min: 20, body_max: ANY, digits_min: 3, word: true },
    // Stripe.
    Shape { prefix: b"sk_live_", body: alnum, body_min: 16, body_max: ANY, digits_min: 0, word: false },
    Shape { prefix: b"rk_live_", body: alnum, body_min: 16, body_max: ANY, digits_min: 0, word: false },
    // Slack.
    Shape { prefix: b"xoxb-", body: wordy, body_min: 10, body_max: ANY, digits_min: 3, word: true },
    Shape { prefix: b"xoxp-", body: wordy, body_min: 10, body_max: ANY, digits_min: 3, word: true },
    Shape { prefix: b"xoxa-", body: wordy, body_min: 10, body_max: ANY, digits_min: 3, word: true },
    Shape { prefix: b"xoxr-", body: wordy, body_min: 10, body_max: ANY, digits_min: 3, word: true },
    Shape { prefix: b"xoxs-", body: wordy, body_min: 10, body_max: ANY, digits_min: 3, word: true },
    // Google, Hugging Face, npm, PyPI.
    Shape { prefix: b"AIza", body: wordy, body_min: 35, body_max: 35, digits_min: 0, word: true },
    Shape { prefix: b"hf_", body: alnum, body_min: 30, body_max: ANY, digits_min: 0, word: true },
    Shape { prefix: b"npm_", body: alnum, body_min: 36, body_max: ANY, digits_min: 0, word: true },
    Shape { prefix: b"pypi-AgEI", body: wordy, body_min: 50, body_max: ANY, digits_min: 0, word: true },
];

/// A JSON object in base64, which is how the first two parts of a JWT begin.
const JWT: &[u8] = b"eyJ";
const JWT_PART_BYTES_MIN: usize = 10;
const PEM_BEGIN: &[u8] = b"-----BEGIN ";
const PEM_END: &[u8] = b"-----END ";
const PEM_DASHES: &[u8] = b"-----";
const PEM_KEY: &[u8] = b"PRIVATE KEY";
const PEM_LABEL_BYTES_MAX: usize = 40;
/// A first line of a key with less than this behind it is somebody talking about keys.
const PEM_BODY_BYTES_MIN: usize = 40;
/// A run of such length at the start of a cut text may be the rest of a token whose prefix was cut off.
const REST_BYTES_MIN: usize = 16;

const PASSWORD: &[u8] = b"://";

/// For each byte, the prefixes that have it as their first, second and third byte: a bit for each of them. A place at which
/// the three have a bit in common begins with one of them, as far as that.
static PREFIXES: [[u32; 256]; 3] = prefixes();

const fn prefixes() -> [[u32; 256]; 3] {
    const OTHERS: [&[u8]; 3] = [JWT, PEM_BEGIN, PASSWORD];
    let mut bits = [[0; 256]; 3];
    let mut shape = 0;
    while shape < SHAPES.len() + OTHERS.len() {
        let prefix = if shape < SHAPES.len() { SHAPES[shape].prefix } else { OTHERS[shape - SHAPES.len()] };
        // Blanks are passed over, and none is shorter than three.
        assert!(prefix[0] > b' ');
        let mut place = 0;
        while place < bits.len() {
            bits[place][prefix[place] as usize] |= 1 << shape;
            place += 1;
        }
        shape += 1;
    }
    bits
}

/// All matches. A text that was cut may end within one.
pub(super) fn find_all(text: &[u8], end_cut: bool, found: &mut Vec<Range<usize>>) {
    let mut from = 0;
    while let Some(place) = next_prefix(text, from) {
        found.extend(at(text, place, end_cut));
        from = place + 1;
    }
}

/// The next place from `at` on where the first bytes are those of a prefix.
fn next_prefix(text: &[u8], mut at: usize) -> Option<usize> {
    let [first, second, third] = &PREFIXES;
    let fits = |a: u8, b: u8, c: u8| first[usize::from(a)] & second[usize::from(b)] & third[usize::from(c)];
    let begins = |three: &[u8]| fits(three[0], three[1], three[2]) != 0;
    while let Some(part) = text.get(at..)?.first_chunk::<{ MANY + 2 }>() {
        let passes = part.first_chunk().is_some_and(is_blank);
        if !passes && (0..MANY).fold(0, |any, n| any | fits(part[n], part[n + 1], part[n + 2])) != 0 {
            return part.windows(3).position(begins).map(|n| at + n);
        }
        at += MANY;
    }
    text[at..].windows(3).position(begins).map(|n| at + n)
}

/// The match that begins at `at`, if one does. A text that was cut may end within it.
fn at(text: &[u8], at: usize, end_cut: bool) -> Option<Range<usize>> {
    let rest = &text[at..];
    if rest.starts_with(PEM_BEGIN) {
        return private_key(rest, end_cut).map(|len| at..at + len);
    }
    if rest.starts_with(JWT) && starts_word(text, at) {
        return jwt(rest, end_cut).map(|len| at..at + len);
    }
    if rest.starts_with(PASSWORD) {
        return password_in_url(rest).map(|range| at + range.start..at + range.end);
    }
    let shape = SHAPES.iter().find(|shape| rest.starts_with(shape.prefix))?;
    if shape.word && !starts_word(text, at) {
        return None;
    }
    let body = &rest[shape.prefix.len()..];
    let len = run(body, shape.body);
    let cut = end_cut && len == body.len();
    let digits = body[..len].iter().filter(|b| b.is_ascii_digit()).count();
    let fits = (shape.body_min..=shape.body_max).contains(&len) && digits >= shape.digits_min;
    (fits || cut && len <= shape.body_max).then_some(at..at + shape.prefix.len() + len)
}

/// Where the rest of a token ends whose beginning was cut off, if the text seems to begin with one.
pub(super) fn rest_at_start(text: &[u8]) -> Option<usize> {
    let window = &text[..text.len().min(PRIVATE_KEY_BYTES_MAX)];
    let key_ends = find(window, PEM_END)
        .filter(|&at| find(&window[..at], PEM_BEGIN).is_none())
        .and_then(|at| Some(at + label(&window[at..], PEM_END)?.1));
    let token = run(text, |b| wordy(b) || b == b'.');
    let digits = text[..token].iter().filter(|b| b.is_ascii_digit()).count();
    key_ends.or((token >= REST_BYTES_MIN && digits > 0).then_some(token))
}

/// The length of a private key in PEM: up to its last line, or, without one, as far as it looks like base64.
fn private_key(rest: &[u8], end_cut: bool) -> Option<usize> {
    let (label_bytes, start) = label(rest, PEM_BEGIN)?;
    find(label_bytes, PEM_KEY)?;
    let window = &rest[..rest.len().min(PRIVATE_KEY_BYTES_MAX)];
    // The next dashes, not the next end: a text of nothing but first lines must not be searched for each of
    // them.
    if let Some(end) = find(window.get(start..)?, PEM_DASHES).map(|end| start + end)
        && rest[end..].starts_with(PEM_END)
    {
        return Some(end + label(&rest[end..], PEM_END).map_or(PEM_END.len(), |(_, len)| len));
    }
    let body = run(&rest[start..], |b| alnum(b) || b"+/=\r\n\\ ".contains(&b));
    (body >= PEM_BODY_BYTES_MIN || end_cut && start + body == rest.len()).then_some(start + body)
}

/// The label of a line such as `-----BEGIN RSA PRIVATE KEY-----`, and the line's length.
fn label<'a>(rest: &'a [u8], opening: &[u8]) -> Option<(&'a [u8], usize)> {
    let body = &rest[opening.len()..];
    let len = find(&body[..body.len().min(PEM_LABEL_BYTES_MAX)], PEM_DASHES)?;
    Some((&body[..len], opening.len() + len + PEM_DASHES.len()))
}

/// The length of a JSON Web Token: two JSON objects and a signature.
fn jwt(rest: &[u8], end_cut: bool) -> Option<usize> {
    let mut len = 0;
    for (index, opening) in [JWT, JWT, b""].into_iter().enumerate() {
        let part = run(&rest[len..], wordy);
        let cut = end_cut && len + part == rest.len();
        if cut && index > 0 {
            return Some(rest.len());
        }
        if part < JWT_PART_BYTES_MIN || !rest[len..].starts_with(opening) {
            return None;
        }
        len += part;
        if index < 2 {
            (rest.get(len) == Some(&b'.')).then_some(())?;
            len += 1;
        }
    }
    Some(len)
}

/// The password in `://user:password@host`, counted from the colon of `://`.
fn password_in_url(rest: &[u8]) -> Option<Range<usize>> {
    let part = |b: u8| b.is_ascii_graphic() && !b"/:@\"'<>\\".contains(&b);
    let colon = 3 + run(&rest[3..], part);
    (rest.get(colon) == Some(&b':')).then_some(())?;
    let password = run(&rest[colon + 1..], part);
    let end = colon + 1 + password;
    (password > 0 && rest.get(end) == Some(&b'@')).then_some(colon + 1..end)
}

/// Whether what begins at `at` is not the rest of a word. The letter before it may belong to an escape: `\n`
/// in JSON, `%3D` in a URL, the colours of a terminal.
fn starts_word(text: &[u8], at: usize) -> bool {
    match &text[..at] {
        [] => true,
        [.., last] if !wordy(*last) => true,
        [.., b'\\', b'n' | b'r' | b't'] => true,
        [.., b'%', high, low] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => true,
        [before @ .., b'm'] => {
            let codes = before.iter().rev().take_while(|b| b.is_ascii_digit() || **b == b';').count();
            before[..before.len() - codes].ends_with(b"\x1b[")
        }
        _ => false,
    }
}

fn run(text: &[u8], of: impl Fn(u8) -> bool) -> usize {
    text.iter().position(|&b| !of(b)).unwrap_or(text.len())
}

fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).position(|window| window == needle)
}

fn upper(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}

fn alnum(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn wordy(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

#[cfg(test)]
mod tests {
    use crate::redaction::Redaction;

    fn check(text: &str, expected: &str) {
        assert_eq!(Redaction::default().compile().text(text), expected, "in {text:?}");
    }

    fn unchanged(text: &str) {
        check(text, text);
    }

    #[test]
    fn known_tokens_are_replaced() {
        let body = "0123456789abcdefghijABCDEFGHIJ012345";
        check("id=AKIAIOSFODNN7EXAMPLE;", "id=[redacted];");
        for prefix in
            ["ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "sk-", "sk-ant-api03-", "sk_live_", "npm_"]
        {
            check(&format!("a {prefix}{body} b"), "a [redacted] b");
        }
        check(&format!("hf_{}", &body[..34]), "[redacted]");
        check(&format!("AIza{}", &body[..35]), "[redacted]");
        check("xoxb-123456789012-abcdef", "[redacted]");
    }

    #[test]
    fn tokens_are_found_behind_escapes() {
        let token = "sk-0123456789abcdefghij";
        for before in ["\\n", "%3D", "\u{1b}[1;32m", "\"", "="] {
            check(&format!("{before}{token}"), &format!("{before}[redacted]"));
        }
    }

    #[test]
    fn ordinary_words_stay() {
        unchanged("task-0123456789abcdefghij-name");
        unchanged("<div class=\"sk-toggleable__content-arrow-hidden\">");
        unchanged("AKIAIOSFODNN7EXAMPLEANDMORE");
        unchanged("MAKIAIOSFODNN7EXAMPLE1");
        unchanged("ghp_short");
        unchanged("see http://localhost:8080/a@b and https://user@host/");
        unchanged("git@github.com:owner/name.git");
        unchanged("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----");
        unchanged("if line == '-----BEGIN PRIVATE KEY-----': parse()");
        unchanged("eyJhbGciOiJIUzI1NiJ9 alone, and eyJ.eyJ.x");
    }

    #[test]
    fn web_tokens_are_replaced_whole() {
        check(
            "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP-mB92K27uhbU end",
            "Bearer [redacted] end",
        );
    }

    #[test]
    fn private_keys_are_replaced_whole() {
        for label in ["RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY"] {
            let key = format!("-----BEGIN {label}-----\nMIIEow\nIBAAK==\n-----END {label}-----");
            check(&format!("a\n{key}\nb"), "a\n[redacted]\nb");
            check(&key.replace('\n', "\\n"), "[redacted]");
        }
        let endless = format!("-----BEGIN PRIVATE KEY-----\n{}", "MIIEowIBAAK\n".repeat(9));
        check(&endless, "[redacted]");
    }

    #[test]
    fn texts_of_nothing_but_prefixes_cost_little() {
        for prefix in
            ["eyJ", "sk-", "xoxb-", "glpat-", "AKIA", "ghp_", "-----BEGIN PRIVATE KEY-----", "://a:"]
        {
            let text = prefix.repeat((1 << 20) / prefix.len());
            Redaction::default().compile().text(&text);
        }
    }

    #[test]
    fn only_the_password_of_a_url_is_replaced() {
        check("clone https://ann:s3cret@git.example/x", "clone https://ann:[redacted]@git.example/x");
    }
}
