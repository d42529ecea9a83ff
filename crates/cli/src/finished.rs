//! Whether a piece of code that somebody types is finished, or goes on in the next line.
//!
//! In doubt it is: then the language says what is missing. Code is made *bare* first, without comments and with nothing in its
//! quotes, so that what is left can be looked at by its letters and words.

use glasshouse_sandbox::Language;

/// Whether code can be run as it is. What a kernel speaks is not known, so its lines end where they end, but for a backslash.
pub(crate) fn is_finished(language: Language, code: &str) -> bool {
    if code.ends_with('\\') {
        return false;
    }
    if language == Language::Jupyter {
        return true;
    }
    let Some(bare) = Bare::of(language, code) else { return false };
    // In Bash, the pattern of a case has a closing bracket alone.
    if depth(&bare) > 0 {
        return false;
    }
    match language {
        Language::Python => !begins_block(&bare) || code.ends_with('\n'),
        Language::Bash => !goes_on(&bare),
        _ => true,
    }
}

fn depth(bare: &str) -> i64 {
    bare.chars().fold(0, |depth, char| match char {
        '(' | '[' | '{' => depth + 1,
        ')' | ']' | '}' => depth - 1,
        _ => depth,
    })
}

/// A block of Python's goes on until an empty line.
fn begins_block(bare: &str) -> bool {
    bare.lines().any(|line| line.trim_end().ends_with(':') || line.starts_with('@'))
}

/// Whether a compound command of Bash's is open, or something has to follow.
fn goes_on(bare: &str) -> bool {
    /// What parts words, and after which a command may begin.
    const PARTS: &str = ";&|()";
    /// Words after which a command may begin.
    const LEADING: [&str; 11] = ["", "if", "while", "until", "then", "do", "else", "elif", "{", "!", "time"];
    let text = bare.trim_end();
    if ["|", "&&"].iter().any(|end| text.ends_with(end)) {
        return true;
    }
    let (mut open, mut is_command) = (0_i64, true);
    let mut word = String::new();
    for char in text.chars().chain(['\n']) {
        if !char.is_whitespace() && !PARTS.contains(char) {
            word.push(char);
            continue;
        }
        let ended = std::mem::take(&mut word);
        if is_command {
            open += match ended.as_str() {
                "if" | "for" | "while" | "until" | "case" | "select" => 1,
                "fi" | "done" | "esac" => -1,
                _ => 0,
            };
        }
        is_command =
            char == '\n' || PARTS.contains(char) || (is_command && LEADING.contains(&ended.as_str()));
    }
    open > 0
}

/// Code on its way to be bare.
struct Bare<'a> {
    language: Language,
    rest: &'a str,
    made: String,
    /// Texts of Bash's that begin with the next line, by what ends them, and whether tabs before that do not count.
    here: Vec<(String, bool)>,
}

impl<'a> Bare<'a> {
    /// `None`: a quote, a comment or a text is open.
    fn of(language: Language, code: &'a str) -> Option<String> {
        let mut bare = Bare { language, rest: code, made: String::new(), here: Vec::new() };
        while let Some(char) = bare.rest.chars().next() {
            bare.take(char)?;
        }
        bare.here.is_empty().then_some(bare.made)
    }

    fn take(&mut self, char: char) -> Option<()> {
        let (rest, after) = (self.rest, &self.rest[char.len_utf8()..]);
        let is_script = matches!(self.language, Language::Javascript | Language::Typescript);
        let is_triple = rest.starts_with("'''") || rest.starts_with("\"\"\"");
        let next_line = after.find('\n').map_or("", |end| &after[end..]);
        if self.is_comment(char) {
            self.rest = next_line;
        } else if is_script && rest.starts_with("/*") {
            self.rest = &after[after.find("*/")? + 2..];
        } else if char == '\\' {
            self.made.push('q');
            self.rest = after.get(after.chars().next().map_or(0, char::len_utf8)..).unwrap_or_default();
        } else if self.language == Language::Python && is_triple {
            self.made.push('q');
            self.rest = &rest[3..][rest[3..].find(&rest[..3])? + 3..];
        } else if matches!(char, '\'' | '"' | '`') {
            self.made.push('q');
            self.rest = match after_quote(self.language, char, after) {
                Some(after) => after,
                None if self.language == Language::Bash || char == '`' => return None,
                // Quotes of these end with their line, finished or not.
                None => next_line,
            };
        } else if let Some(after) = self.after_pattern(char).filter(|_| is_script) {
            self.made.push('q');
            self.rest = after;
        } else {
            self.made.push(char);
            self.rest = after;
            if self.language == Language::Bash {
                self.look_for_texts(char)?;
            }
        }
        Some(())
    }

    fn is_comment(&self, char: char) -> bool {
        match self.language {
            Language::Python => char == '#',
            Language::Bash => {
                char == '#' && (self.made.is_empty() || self.made.ends_with([' ', '\t', '\n', ';']))
            }
            _ => self.rest.starts_with("//"),
        }
    }

    /// What follows a regular expression of JavaScript's, if one begins here: where there is nothing to be divided.
    fn after_pattern(&self, char: char) -> Option<&'a str> {
        let before = self.made.trim_end();
        let is_value = before.ends_with(|last: char| last.is_alphanumeric() || "_$)]}".contains(last));
        let is_asked = ["return", "typeof", "case"].iter().any(|word| before.ends_with(word));
        if char != '/' || (is_value && !is_asked) {
            return None;
        }
        let (mut escaped, mut in_class) = (false, false);
        for (at, char) in self.rest.char_indices().skip(1) {
            match char {
                '\n' => return None,
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '[' => in_class = true,
                ']' => in_class = false,
                '/' if !in_class => return Some(&self.rest[at + 1..]),
                _ => {}
            }
        }
        None
    }

    /// Notes that a text begins with the next line, and passes those that begin here. `None`: one has no end.
    fn look_for_texts(&mut self, char: char) -> Option<()> {
        if char == '\n' {
            for (end, tabs) in std::mem::take(&mut self.here) {
                let mut passed = 0;
                let is_end = |line: &str| {
                    passed += line.len();
                    let line = line.trim_end_matches('\n');
                    end == if tabs { line.trim_start_matches('\t') } else { line }
                };
                let found = self.rest.split_inclusive('\n').any(is_end);
                self.rest = &self.rest[passed..];
                found.then_some(())?;
            }
            return Some(());
        }
        if !self.made.ends_with("<<") || self.made.ends_with("<<<") || self.rest.starts_with('<') {
            return Some(());
        }
        let tabs = self.rest.starts_with('-');
        let word = self.rest.trim_start_matches(['-', ' ']);
        let is_of_word = |char: &char| !char.is_whitespace() && !";&|)(<>".contains(*char);
        let end = word.chars().take_while(is_of_word).collect::<String>().replace(['\'', '"', '\\'], "");
        // A number is shifted by another, and ends no text.
        if end.starts_with(|first: char| first.is_alphabetic() || first == '_') {
            self.here.push((end, tabs));
        }
        Some(())
    }
}

fn after_quote(language: Language, quote: char, text: &str) -> Option<&str> {
    let mut escaped = false;
    for (at, char) in text.char_indices() {
        match char {
            _ if escaped => escaped = false,
            '\\' if !(language == Language::Bash && quote == '\'') => escaped = true,
            '\n' if language != Language::Bash && quote != '`' => return None,
            _ if char == quote => return Some(&text[at + char.len_utf8()..]),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finished_goes_on() {
        use Language::{Bash, Javascript, Python};
        for (language, code) in [
            (Python, "1 + 1"),
            (Python, "x = [1,\n2]"),
            (Python, "print(')') # ("),
            (Python, "if x:\n    y\n"),
            (Python, "'''a\nb'''"),
            (Python, "d = {'a': 1}"),
            (Python, "x = 1  # note:"),
            (Python, "x = '#:'"),
            (Javascript, "const f = () => { return 1 }"),
            (Javascript, "`a\nb`"),
            (Javascript, "const re = /[(/]/"),
            (Javascript, "/* ( */ 5"),
            (Javascript, "a = b / (c / 2)"),
            (Javascript, "s.replace(/\\(/g, ')')"),
            (Bash, "echo 'a b' # ("),
            (Bash, "case x in x) echo;; esac"),
            (Bash, "for i in 1 2; do echo $i; done"),
            (Bash, "if true; then echo a; fi"),
            (Bash, "echo if"),
            (Bash, "echo for; echo done"),
            (Bash, "cat <<EOF\na (\nEOF"),
            (Bash, "cat <<-'E'\n\tx\n\tE"),
            (Bash, "cat <<< word"),
            (Bash, "echo $((1<<2))"),
            (Bash, "a=${#b}"),
        ] {
            assert!(is_finished(language, code), "{code:?}");
        }
        for (language, code) in [
            (Python, "x = ["),
            (Python, "def f():"),
            (Python, "for i in range(2):  # loop"),
            (Python, "if x:\n    y"),
            (Python, "'''a\nb"),
            (Python, "x = 1 + \\"),
            (Javascript, "function f() {"),
            (Javascript, "`a"),
            (Javascript, "/* a"),
            (Javascript, "f(/x/,"),
            (Bash, "echo 'a"),
            (Bash, "echo a \\"),
            (Bash, "f() {"),
            (Bash, "for i in 1 2; do"),
            (Bash, "if true; then"),
            (Bash, "while read x; do if a; then b; fi"),
            (Bash, "case x in"),
            (Bash, "cat <<EOF\na"),
            (Bash, "echo a |"),
            (Bash, "true &&"),
        ] {
            assert!(!is_finished(language, code), "{code:?}");
        }
    }
}
