//! Tables and figures by the real pandas and matplotlib, of PyPI. They are no part of the box: a volume has them.

use std::path::PathBuf;
use std::sync::OnceLock;

use base64::Engine as _;
use glasshouse_sandbox::{
    CodeResult, ContextInfo, ContextSpec, Exit, RuntimeKind, Sandbox, SandboxSpec, Volume,
};
use glasshouse_tests::{python, skip};

use crate::code::run;
use crate::stage::{Stage, on_every_runtime, text};

on_every_runtime!(
    figures_are_shown_without_a_word,
    figures_are_shown_when_asked_for,
    tables_are_text_and_html
);

/// Where the packages are.
fn packages() -> Option<&'static PathBuf> {
    static PACKAGES: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let install = || {
        let python = python::python("python-pictures", include_str!("pictures.txt"))?;
        let lib = python.parent().and_then(|bin| bin.parent()).map(|dir| dir.join("lib"));
        let versions = lib.into_iter().flat_map(std::fs::read_dir).flatten().flatten();
        let mut found = versions.map(|entry| entry.path().join("site-packages"));
        found.next().ok_or_else(|| "the new Python has no packages".to_owned())
    };
    match PACKAGES.get_or_init(install) {
        Ok(dir) => Some(dir),
        Err(why) => {
            skip("pictures", why);
            None
        }
    }
}

/// A context that has the packages.
async fn context(stage: &Stage) -> Option<(Sandbox, ContextInfo)> {
    let packages = packages()?;
    let (spec, path) = match stage.runtime {
        RuntimeKind::Process => (SandboxSpec::default(), packages.to_str()?),
        _ => {
            stage.house.allow_volumes(vec![packages.clone()]).unwrap();
            let volumes = vec![Volume::new(packages, "/packages", true)];
            (SandboxSpec { volumes, ..SandboxSpec::default() }, "/packages")
        }
    };
    let sandbox = stage.create(spec).await.unwrap();
    let env = vec![("PYTHONPATH".into(), path.to_owned()), ("MPLCONFIGDIR".into(), "/tmp".into())];
    // The packages are for the Python that they were installed with.
    let interpreter = Some("/usr/bin/python3".into());
    let made =
        sandbox.create_context(ContextSpec { env, interpreter, ..ContextSpec::default() }).await.unwrap();
    Some((sandbox, made))
}

/// Width and height of a picture, and whether it shows more than one colour.
fn picture(data: &str) -> (u32, u32, bool) {
    let bytes = base64::engine::general_purpose::STANDARD.decode(data).expect("it is base64");
    assert_eq!(bytes[..8], *b"\x89PNG\r\n\x1a\n");
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    // One colour alone is packed into less than this.
    (number(16), number(20), bytes.len() > 4000)
}

async fn figures_are_shown_without_a_word(stage: &Stage) {
    let Some((sandbox, context)) = context(stage).await else { return };
    let code = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9, 16])\nplt.title('squares');";
    let output = run(&sandbox, &context, code).await;
    assert!(output.report.exit.success(), "{output:?}");
    let [CodeResult::Display(bundle)] = output.results.as_slice() else { panic!("{output:?}") };
    let (width, height, has_colours) = picture(&bundle.data["image/png"]);
    assert!(width > 400 && height > 300 && has_colours, "{width}×{height}");
    assert_eq!(bundle.text(), Some("<Figure size 640x480 with 1 Axes>"));
    // It is shown once.
    assert_eq!(run(&sandbox, &context, "1;").await.results, []);
}

async fn figures_are_shown_when_asked_for(stage: &Stage) {
    let Some((sandbox, context)) = context(stage).await else { return };
    let code = "
import matplotlib.pyplot as plt
fig, ax = plt.subplots()
ax.bar(['a', 'b'], [1, 2])
plt.show()
print('shown')
other = plt.figure(figsize=(2, 2))
plt.scatter([1, 2], [2, 1])
other";
    let output = run(&sandbox, &context, code).await;
    // A box without fonts of its own is told of on stderr.
    assert_eq!((text(&output.stdout).as_str(), &output.report.exit), ("shown\n", &Exit::Code { code: 0 }));
    let [CodeResult::Display(shown), CodeResult::Value(value)] = output.results.as_slice() else {
        panic!("{output:?}")
    };
    assert!(picture(&shown.data["image/png"]).0 > 400);
    assert!(picture(&value.data["image/png"]).0 < 300);
}

async fn tables_are_text_and_html(stage: &Stage) {
    let Some((sandbox, context)) = context(stage).await else { return };
    let code = "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', '<y>']})";
    let output = run(&sandbox, &context, code).await;
    let [CodeResult::Value(bundle)] = output.results.as_slice() else { panic!("{output:?}") };
    assert_eq!(bundle.text(), Some("   a    b\n0  1    x\n1  2  <y>"));
    let html = &bundle.data["text/html"];
    assert!(html.contains("<table") && html.contains("&lt;y&gt;"), "{html}");
}
