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
    tables_are_text_and_html,
    what_libraries_make_crosses_in_every_shape,
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
    // That of code which fails is its own, too, and its error comes last.
    for end in ["raise ValueError('no')", "import sys; sys.exit(3)"] {
        let output = run(&sandbox, &context, &format!("plt.plot([1, 2])\n{end}")).await;
        let [CodeResult::Display(bundle), CodeResult::Error(_)] = output.results.as_slice() else {
            panic!("{output:?}")
        };
        assert!(bundle.data.contains_key("image/png"), "{output:?}");
        assert_eq!(run(&sandbox, &context, "1;").await.results, []);
    }
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

/// Each shape as the libraries themselves make it, and what of it is the same every time.
async fn what_libraries_make_crosses_in_every_shape(stage: &Stage) {
    let Some((sandbox, context)) = context(stage).await else { return };
    let code = "
import io, json
import matplotlib.pyplot as plt, numpy as np, pandas as pd
table = pd.DataFrame({'a': [1, 2], 'b': ['x', None]})
def drawn(kind):
    figure, axes = plt.subplots()
    axes.plot([1, 4, 9])
    made = io.BytesIO()
    figure.savefig(made, format=kind)
    plt.close(figure)
    return made.getvalue()
class Report:
    def __repr__(self): return 'a report'
    def _repr_svg_(self): return drawn('svg').decode()
    def _repr_jpeg_(self): return drawn('jpeg')
    def _repr_pdf_(self): return drawn('pdf')
    def _repr_png_(self): return drawn('png')
    def _repr_json_(self): return json.loads(table.to_json(orient='records'))
    def _repr_markdown_(self): return table.to_csv(sep='|', index=False)
    def _repr_html_(self): return table._repr_html_()
    def _repr_javascript_(self): return 'show(%s)' % table.to_json()
display(np.polynomial.Polynomial([1, 2, 3]))
Report()";
    let output = run(&sandbox, &context, code).await;
    assert!(output.report.exit.success(), "{output:?}");
    let [CodeResult::Display(polynomial), CodeResult::Value(report)] = output.results.as_slice() else {
        panic!("{output:?}")
    };
    let latex = &polynomial.data["text/latex"];
    assert!(latex.starts_with(r"$x \mapsto ") && latex.ends_with('$') && latex.contains("x^{2}"), "{latex}");
    assert_eq!(
        polynomial.text(),
        Some("Polynomial([1., 2., 3.], domain=[-1.,  1.], window=[-1.,  1.], symbol='x')")
    );
    let kinds: Vec<&str> = report.data.keys().map(String::as_str).collect();
    let all = [
        "application/javascript",
        "application/json",
        "application/pdf",
        "image/jpeg",
        "image/png",
        "image/svg+xml",
        "text/html",
        "text/markdown",
        "text/plain",
    ];
    assert_eq!(kinds, all);
    let svg = &report.data["image/svg+xml"];
    assert!(svg.starts_with("<?xml") && svg.contains("<path") && svg.trim_end().ends_with("</svg>"), "{svg}");
    let bytes = |mime: &str| {
        base64::engine::general_purpose::STANDARD.decode(&report.data[mime]).expect("it is base64")
    };
    let (jpeg, pdf) = (bytes("image/jpeg"), bytes("application/pdf"));
    assert_eq!((&jpeg[..3], &jpeg[jpeg.len() - 2..]), (&b"\xff\xd8\xff"[..], &b"\xff\xd9"[..]));
    assert!(pdf.starts_with(b"%PDF-1.") && pdf.trim_ascii_end().ends_with(b"%%EOF"));
    assert_eq!(picture(&report.data["image/png"]), (640, 480, true));
    let told: serde_json::Value = serde_json::from_str(&report.data["application/json"]).unwrap();
    assert_eq!(told, serde_json::json!([{ "a": 1, "b": "x" }, { "a": 2, "b": null }]));
    assert_eq!(report.data["text/markdown"], "a|b\n1|x\n2|\n");
    assert!(report.data["text/html"].contains("<table"));
    assert_eq!(report.data["application/javascript"], r#"show({"a":{"0":1,"1":2},"b":{"0":"x","1":null}})"#);
    assert_eq!(report.text(), Some("a report"));
}
