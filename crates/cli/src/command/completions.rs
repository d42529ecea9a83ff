//! `glass completions`: a script that teaches a shell our words.

use anyhow::Result;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use serde_json::json;

use super::Cli;
use crate::args::Global;
use crate::output;

/// Print the completions for a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  glass completions bash > ~/.local/share/bash-completion/completions/glass
  glass completions fish > ~/.config/fish/completions/glass.fish
  glass completions zsh > ~/.zfunc/_glass")]
pub(crate) struct Completions {
    /// Which shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self, global: &Global) -> Result<i32> {
        let script = script(self.shell);
        match global.json {
            true => {
                let text = String::from_utf8_lossy(&script);
                output::print_json(&json!({ "shell": self.shell.to_string(), "script": text }))?;
            }
            false => output::print_bytes(&script)?,
        }
        Ok(0)
    }
}

/// Into memory first: the generator panics if it cannot write.
fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "glass", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_shell_learns_every_command() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).unwrap();
            for word in ["doctor", "completions", "min-level", "background", "without-tool"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }
}
