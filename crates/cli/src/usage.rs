//! What is said to a command line that makes no sense.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::output;

/// The exit code for it; 125 where 2 could be taken for the program's own.
const USAGE_CODE: i32 = 2;
/// The exit code of an error of ours where a program's own is passed on.
pub(crate) const OURS_CODE: i32 = 125;

/// Says what is wrong, or gives the help that was asked for, and returns the exit code.
pub(crate) fn report(error: &clap::Error) -> i32 {
    let passes_code_on =
        passes_code_on(std::env::args_os().skip(1).filter_map(|word| word.into_string().ok()));
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Whoever closed our output does not want to hear about it.
            let _ = error.print();
            return 0;
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
        }
        ErrorKind::ValueValidation => match one_sentence(error) {
            Some(sentence) => output::say(&sentence),
            None => say_all(error),
        },
        _ => say_all(error),
    }
    if passes_code_on { OURS_CODE } else { USAGE_CODE }
}

/// Which value of which option, and why not.
fn one_sentence(error: &clap::Error) -> Option<String> {
    let context = |kind| match error.get(kind)? {
        ContextValue::String(text) => Some(text.as_str()),
        _ => None,
    };
    let option = context(ContextKind::InvalidArg)?;
    let value = context(ContextKind::InvalidValue)?;
    let option = option.split(' ').next().unwrap_or(option);
    Some(format!("cannot take {value:?} for {option}: {}", error.source()?))
}

/// The library's own words, with its hints and the usage.
fn say_all(error: &clap::Error) {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    eprint!("glass: {text}");
}

/// Whether the command is one whose exit code is a program's.
fn passes_code_on(words: impl IntoIterator<Item = String>) -> bool {
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--home" => drop(words.next()),
            word if word.starts_with('-') => {}
            word => return matches!(word, "run" | "exec"),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::command::Cli;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_command_is_found_behind_global_options() {
        for line in ["run --nope", "--json run", "--home /x exec", "--home=/x -q run"] {
            assert!(passes_code_on(words(line)), "{line}");
        }
        for line in ["list --nope", "--home run list", "", "--version"] {
            assert!(!passes_code_on(words(line)), "{line}");
        }
    }

    #[test]
    fn a_bad_value_gets_one_sentence() {
        let check = |line: &str, sentence: &str| {
            let error = Cli::try_parse_from(words(line)).map(drop).unwrap_err();
            assert_eq!(one_sentence(&error).as_deref(), Some(sentence));
        };
        check("glass run --memory 0 -- ls", "cannot take \"0\" for --memory: a size must be more than zero");
        check(
            "glass batch -j 0 --lang python x.py",
            "cannot take \"0\" for --jobs: it is a number, 1 or more",
        );
        check("glass create --ttl -5s", "cannot take \"-5s\" for --ttl: a time cannot be negative");
        check(
            "glass create --owner me",
            "cannot take \"me\" for --owner: an owner is the number of a process, like $$ in a shell",
        );
    }
}
