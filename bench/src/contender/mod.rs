//! Who takes part, in what, and who cannot.

mod bwrap;
pub(crate) mod docker;
mod glass;
mod oci;
mod process;
mod served;

use std::time::Duration;

use anyhow::Result;

use crate::options::Options;
use crate::report::{Measure, Mode};
use crate::stage::Stage;
use docker::Engine;
pub(crate) use process::CommandLine;
use served::Served;

/// What everybody runs: a program that does nothing, and one that takes a while to get there.
const TRUE: [&str; 1] = ["/bin/true"];
const PYTHON: [&str; 3] = ["/usr/bin/python3", "-c", "pass"];

/// Something that takes a turn in every round.
pub(crate) struct Contender {
    /// The rows that one turn fills, in this order.
    pub(crate) rows: Vec<(Measure, &'static str)>,
    /// What a turn is, or why there are none.
    pub(crate) turn: Result<Turn, Absent>,
}

/// Why somebody does not take part.
#[derive(Debug)]
pub(crate) enum Absent {
    /// It is not to be had here.
    Missing(String),
    /// It should be to be had here.
    Failed(String),
}

/// What is done in a turn.
pub(crate) enum Turn {
    /// A process runs to its end.
    Process(CommandLine),
    /// A box is made through the library, a command runs in it, and it is destroyed.
    FreshBox(Vec<String>),
    /// The same, by a house that has begun boxes ahead.
    BegunBox(Vec<String>),
    /// A command runs in the live box, over the connection that is there.
    LiveBox(Vec<String>),
    /// The same over HTTP, over a connection that is kept.
    Served(Box<Served>),
    /// The same two in containers.
    FreshContainer(Vec<String>),
    /// A command runs in the live container.
    LiveContainer(Vec<String>),
}

impl Turn {
    /// One turn: a time for each row.
    pub(crate) async fn take(&self, stage: &Stage) -> Result<Vec<Duration>> {
        match self {
            Turn::Process(line) => Ok(vec![line.time()?]),
            Turn::FreshBox(argv) => glass::fresh(stage, crate::stage::spec(), argv).await,
            Turn::LiveBox(argv) => glass::live(&stage.live, argv).await,
            Turn::Served(served) => Ok(vec![served.time()?]),
            Turn::BegunBox(argv) => glass::begun(stage, argv).await,
            Turn::FreshContainer(argv) => glass::made_by(&stage.house, crate::stage::contained(), argv).await,
            Turn::LiveContainer(argv) => match &stage.contained {
                Ok(contained) => glass::live(contained, argv).await,
                Err(why) => anyhow::bail!("{why}"),
            },
        }
    }
}

/// All contenders, and what has to live while they take their turns.
pub(crate) struct Field {
    pub(crate) contenders: Vec<Contender>,
    _engine: Option<Engine>,
}

/// Finds out who can take part.
pub(crate) fn field(stage: &Stage, mode: Mode, options: &Options) -> Field {
    let engine = Engine::find(stage);
    let mut contenders = Vec::new();
    let mut add = |rows: &[(Measure, &'static str)], turn: &dyn Fn() -> Result<Turn, Absent>| {
        // Only what is wanted is tried, too.
        if rows.iter().any(|(measure, name)| options.wants(&measure.row(name))) {
            contenders.push(Contender { rows: rows.to_vec(), turn: turn() });
        }
    };
    let docker = |line: &dyn Fn(&Engine) -> CommandLine| match &engine {
        Ok(engine) => tried(line(engine)),
        Err(why) => Err(Absent::Missing(why.clone())),
    };
    let own = |line: Result<CommandLine, String>| {
        line.map_err(Absent::Failed).and_then(|line| expected(tried(line)))
    };

    add(&[(Measure::First, "bare")], &|| expected(tried(CommandLine::new(&TRUE))));
    add(&[(Measure::First, "bwrap")], &|| tried(bwrap::line(&TRUE)));
    for name in ["runc", "crun"] {
        add(&[(Measure::First, name)], &|| oci::line(name, stage, mode).and_then(tried));
    }
    add(&[(Measure::First, "docker")], &|| docker(&Engine::run));
    add(&glass::FRESH_ROWS, &|| Ok(Turn::FreshBox(owned(&TRUE))));
    add(&[(Measure::First, "library-begun")], &|| Ok(Turn::BegunBox(owned(&TRUE))));
    let contained = |turn: Turn| match &stage.contained {
        Ok(_) => Ok(turn),
        Err(why) => Err(Absent::Missing(why.clone())),
    };
    add(&[(Measure::First, "in-container")], &|| contained(Turn::FreshContainer(owned(&TRUE))));
    add(&[(Measure::First, "program")], &|| own(glass::run_line(stage, &TRUE)));

    add(&[(Measure::Exec, "bare")], &|| expected(tried(CommandLine::new(&TRUE))));
    add(&[(Measure::Exec, "docker")], &|| docker(&Engine::exec));
    add(&glass::LIVE_ROWS, &|| Ok(Turn::LiveBox(owned(&TRUE))));
    add(&[(Measure::Exec, "http")], &|| match Served::start(stage, &TRUE) {
        Ok(served) => Ok(Turn::Served(Box::new(served))),
        Err(error) => Err(Absent::Failed(format!("{error:#}"))),
    });
    add(&[(Measure::Exec, "in-container")], &|| contained(Turn::LiveContainer(owned(&TRUE))));
    add(&[(Measure::Exec, "program")], &|| own(glass::exec_line(stage, &TRUE)));

    let python = std::path::Path::new(PYTHON[0]).exists();
    let with_python = |turn: &dyn Fn() -> Result<Turn, Absent>| match python {
        true => turn(),
        false => Err(Absent::Missing(format!("{} is not there", PYTHON[0]))),
    };
    add(&[(Measure::Python, "bare")], &|| with_python(&|| tried(CommandLine::new(&PYTHON))));
    add(&[(Measure::Python, "bwrap")], &|| with_python(&|| tried(bwrap::line(&PYTHON))));
    add(&[(Measure::Python, "library")], &|| with_python(&|| Ok(Turn::FreshBox(owned(&PYTHON)))));
    add(&[(Measure::Python, "live")], &|| with_python(&|| Ok(Turn::LiveBox(owned(&PYTHON)))));
    Field { contenders, _engine: engine.ok() }
}

fn owned(argv: &[&str]) -> Vec<String> {
    argv.iter().map(|&word| word.to_owned()).collect()
}

/// Runs it once, before anything is measured: what does not work is told and left out.
fn tried(line: CommandLine) -> Result<Turn, Absent> {
    line.try_once().map_err(Absent::Missing)?;
    Ok(Turn::Process(line))
}

/// What every host has, and what is ours, must work.
fn expected(turn: Result<Turn, Absent>) -> Result<Turn, Absent> {
    turn.map_err(|absent| match absent {
        Absent::Missing(why) | Absent::Failed(why) => Absent::Failed(why),
    })
}
