//! The documents tell the truth.

use crate::{read, root};

/// Words in backquotes that look like paths of the repository.
fn paths_in(text: &str) -> Vec<String> {
    let looks_like_a_path = |word: &str| {
        let starts = ["crates/", "tests/", "bench/", "docs/", ".ci/"];
        starts.iter().any(|start| word.starts_with(start)) && !word.contains(['*', '<', '{', ' ', '…'])
    };
    text.split('`').skip(1).step_by(2).filter(|word| looks_like_a_path(word)).map(str::to_owned).collect()
}

#[test]
fn every_path_that_a_document_names_exists() {
    for document in [
        "ARCHITECTURE.md",
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "docs/protocol.md",
        "docs/trace-format.md",
        "docs/determinism.md",
        "docs/replay.md",
        "docs/serve.md",
        "docs/trajectory-format.md",
        "docs/tools.md",
    ] {
        for path in paths_in(&read(document)) {
            assert!(root().join(&path).exists(), "{document} names {path}, which is not there");
        }
    }
}

#[test]
fn the_architecture_names_every_crate() {
    let text = read("ARCHITECTURE.md");
    for name in ["protocol", "guest", "linux", "trace", "sandbox", "server", "cli"] {
        assert!(text.contains(&format!("crates/{name}")), "ARCHITECTURE.md does not name crates/{name}");
    }
}

#[test]
fn changes_are_told() {
    assert!(read("CHANGELOG.md").contains("## Unreleased"));
}

#[test]
fn ci_runs_the_command_of_the_readme() {
    assert!(read(".ci/run").contains("./test.sh"));
    assert!(read("README.md").contains("./test.sh"));
}

#[test]
fn every_rule_and_every_format_of_trajectories_is_documented() {
    let text = read("docs/trajectory-format.md");
    let rules = glasshouse_trace::trajectory::BUILT_IN.iter().map(|rule| (rule.name, rule.on));
    for (name, on) in rules {
        let row = text.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let ends = if on { "| on |" } else { "| off |" };
        assert!(row.is_some_and(|row| row.ends_with(ends)), "the rule {name} is not documented as {ends}");
    }
    for format in glasshouse_trace::trajectory::Format::ALL {
        assert!(text.contains(&format!("`{format}`")), "{format} is not documented");
    }
}
