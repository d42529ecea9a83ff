//! What trajectories do, and what can be changed in them.

use glasshouse_trace::trajectory::{Step, Trajectory};
use serde_json::{Value, json};

/// Numbers that look like chance and are the same for the same seed (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Lines for a shell, one a step.
pub(crate) struct Script {
    pub(crate) lines: Vec<String>,
}

impl Script {
    /// Some steps that write, read, move, fail, and ask for all that a deterministic box gives.
    pub(crate) fn generate(dice: &mut Dice) -> Script {
        let mut lines = vec!["mkdir -p src docs && echo begin > src/keep.txt && echo made".to_owned()];
        for number in 0..3 + dice.below(5) {
            let (file, value) = (dice.below(4), dice.below(1000));
            lines.push(match dice.below(10) {
                0 => format!("echo line {value} >> src/f{file}.txt; wc -l < src/f{file}.txt"),
                1 => format!("printf '%s\\n' {value} 3 2 | sort > docs/s{file}; cat docs/s{file}"),
                2 => {
                    format!("python3 -c 'import random, time; print(random.random(), time.time(), {value})'")
                }
                3 => format!("head -c 16 /dev/urandom > src/r{file}.bin; wc -c src/r{file}.bin"),
                4 => format!("ln -sf keep.txt src/l{file}; readlink src/l{file}; date"),
                5 => format!("echo oops {value} >&2; exit {}", 1 + value % 9),
                6 => {
                    format!("mkdir -p src/d{file}; touch src/d{file}/x; chmod 6{} src/d{file}/x", value % 8)
                        .to_owned()
                        + "0"
                }
                7 => format!("env | sort; echo $$ {value}"),
                8 => format!(
                    "python3 -c 'print(hash(\"{value}\"), {{\"a{value}\", \"b\", \"c\"}})' | tee docs/h{file}"
                ),
                _ => format!(
                    "tar cf docs/t{file}.tar -C src keep.txt --mtime=@{value}; sha256sum docs/t{file}.tar"
                ),
            });
            if number == 1 {
                lines.push("env | sort".to_owned());
            }
        }
        lines.push("ls -R src docs; cat src/keep.txt".to_owned());
        Script { lines }
    }

    /// The solution of a problem of HumanEval, written, tried and tested.
    pub(crate) fn of_problem(problem: &Value) -> Script {
        let text = |name: &str| problem[name].as_str().expect("problems have texts").to_owned();
        let put = |name: &str, content: String| {
            format!("cat > {name} <<'THE-END'\n{content}\nTHE-END\nwc -c < {name}")
        };
        let solution = text("prompt") + &text("canonical_solution");
        let test = format!(
            "from solution import *\n{}\ncheck({})\nprint('passed')",
            text("test"),
            text("entry_point")
        );
        Script {
            lines: vec![
                put("solution.py", solution),
                "python3 -m py_compile solution.py && env | sort".to_owned(),
                put("test.py", test),
                "python3 test.py".to_owned(),
                "grep -c . solution.py; ls".to_owned(),
            ],
        }
    }
}

/// One thing that goes another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    OutputByte,
    FileByte,
    ModeBit,
    Owner,
    MissingFile,
    ExtraProcess,
    ExitCode,
    Variable,
}

impl Mutation {
    const ALL: [Mutation; 8] = [
        Mutation::OutputByte,
        Mutation::FileByte,
        Mutation::ModeBit,
        Mutation::Owner,
        Mutation::MissingFile,
        Mutation::ExtraProcess,
        Mutation::ExitCode,
        Mutation::Variable,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Mutation::OutputByte => "output byte",
            Mutation::FileByte => "file byte",
            Mutation::ModeBit => "mode bit",
            Mutation::Owner => "owner",
            Mutation::MissingFile => "missing file",
            Mutation::ExtraProcess => "extra process",
            Mutation::ExitCode => "exit code",
            Mutation::Variable => "variable",
        }
    }

    /// A kind, and a step to which it can happen.
    pub(crate) fn pick(number: usize, trajectory: &Trajectory, dice: &mut Dice) -> (Mutation, usize) {
        let mutation = Mutation::ALL[number % Mutation::ALL.len()];
        let fits = |step: &Step| match mutation {
            Mutation::FileByte | Mutation::ModeBit | Mutation::MissingFile | Mutation::Owner => {
                file_of(step).is_some()
            }
            // A variable that nobody looks at changes nothing.
            Mutation::Variable => line(step).contains("env | sort"),
            Mutation::OutputByte | Mutation::ExtraProcess | Mutation::ExitCode => true,
        };
        let steps: Vec<usize> =
            (0..trajectory.steps.len()).filter(|&at| fits(&trajectory.steps[at])).collect();
        (mutation, steps[dice.below(steps.len())])
    }

    /// The trajectory with a step that does something else than it did when it was recorded.
    pub(crate) fn happen(self, trajectory: &Trajectory, at: usize) -> Trajectory {
        let mut mutant = trajectory.clone();
        let step = &mut mutant.steps[at];
        let file = file_of(step).unwrap_or_default();
        let line = line(step);
        let after = |what: String| format!("( {line}\n); e=$?; {what}; exit $e");
        let changed = match self {
            Mutation::OutputByte => after("printf x".to_owned()),
            Mutation::FileByte => after(format!("printf x >> {file}")),
            Mutation::ModeBit => after(format!("chmod o+w {file}")),
            Mutation::MissingFile => after(format!("rm -f {file}")),
            Mutation::ExtraProcess => after("(setsid sleep 1000 &) >/dev/null 2>&1 </dev/null".to_owned()),
            Mutation::ExitCode => format!("( {line}\n); exit $(($? + 1))"),
            Mutation::Variable => format!("export SURPRISE=1\n{line}"),
            Mutation::Owner => {
                // Nobody in a box can give a file away: here the record is what differs.
                let state = step.observed.state.as_mut().expect("steps are recorded");
                state.digest = format!("b3:{}", "0".repeat(64));
                let change =
                    state.changes.iter_mut().find(|change| change.uid.is_some()).expect("a file changed");
                change.uid = change.uid.map(|uid| uid + 1);
                return mutant;
            }
        };
        step.params.insert("shell".to_owned(), json!(changed));
        mutant
    }
}

fn line(step: &Step) -> String {
    step.params["shell"].as_str().expect("steps are lines").to_owned()
}

/// A regular file that a step changed and that is still there.
fn file_of(step: &Step) -> Option<String> {
    let changes = &step.observed.state.as_ref()?.changes;
    let file = changes.iter().find(|change| change.kind.as_deref() == Some("file"))?;
    Some(file.path.clone())
}
