//! The tools for files: all paths are the box's, relative ones from its working directory, and no bytes hold them up.

use glasshouse_sandbox::Sandbox;
use serde_json::{Value, json};

use crate::stage::{on_every_runtime, stdout_of, within};
use crate::tools::{call, done, fails};

on_every_runtime![
    what_is_written_is_where_commands_find_it,
    permissions_stay_and_set_id_bits_go_and_that_is_told,
    odd_paths_are_paths,
    lines_are_read_by_number,
    what_is_no_text_is_not_shown,
    a_piece_is_replaced_exactly,
    a_patch_is_applied_whole_or_not_at_all,
    a_patch_of_git_says_more_than_lines,
    directories_are_listed,
    what_is_removed_is_gone,
];

async fn write(sandbox: &Sandbox, path: &str, content: &str) {
    let said = done(sandbox, "file_write", json!({"path": path, "content": content})).await;
    assert_eq!(said, format!("wrote {} bytes to {path}\n", content.len()));
}

async fn read(sandbox: &Sandbox, path: &str) -> String {
    done(sandbox, "file_read", json!({"path": path})).await
}

async fn what_is_written_is_where_commands_find_it(sandbox: &Sandbox) {
    write(sandbox, "new/dir/x.txt", "text").await;
    assert_eq!(stdout_of(sandbox, "cat new/dir/x.txt").await, "text", "relative to the working directory");
    let absolute = format!("{}/new/dir/x.txt", sandbox.info().cwd);
    assert_eq!(read(sandbox, &absolute).await, "text");
    let params = json!({"path": "no/dir/x", "content": "", "create_dirs": false});
    fails(sandbox, "file_write", params, 1, "No such file").await;
    write(sandbox, "script", "#!/bin/sh\necho 1\n").await;
    stdout_of(sandbox, "chmod 750 script").await;
    write(sandbox, "script", "#!/bin/sh\necho 2\n").await;
    assert_eq!(stdout_of(sandbox, "./script; stat -c %a script").await, "2\n750\n", "the mode is kept");
    write(sandbox, "empty", "").await;
    assert_eq!(read(sandbox, "empty").await, "");
    let big = "ä\n".repeat(1_000_000);
    write(sandbox, "big", &big).await;
    assert_eq!(stdout_of(sandbox, "wc -c < big").await.trim(), "3000000");
    fails(sandbox, "file_write", json!({"path": "new", "content": "x"}), 1, "a directory").await;
    // What ends like a directory's name is no file's, whether something is there or not.
    for (path, end) in [
        ("new/", "/"),
        ("fresh/", "/"),
        ("fresh/deep/", "/"),
        ("empty/", "/"),
        ("fresh//", "/"),
        ("fresh/.", "."),
        ("fresh/deep/..", ".."),
        (".", "."),
    ] {
        let words = format!("ends in `{end}` is a directory's");
        fails(sandbox, "file_write", json!({"path": path, "content": "x"}), 1, &words).await;
        fails(sandbox, "file_read", json!({"path": path}), 1, &words).await;
    }
    assert_eq!(stdout_of(sandbox, "ls -d fresh* 2> /dev/null | wc -l").await.trim(), "0", "nothing was made");
}

async fn permissions_stay_and_set_id_bits_go_and_that_is_told(sandbox: &Sandbox) {
    for (mode, after) in [("755", "755"), ("640", "640"), ("1644", "1644"), ("4755", "755"), ("6750", "750")]
    {
        stdout_of(sandbox, &format!("echo old > f; chmod {mode} f; ln -sf f link")).await;
        let result = call(sandbox, "file_write", json!({"path": "link", "content": "new"})).await;
        assert_eq!(result.stdout, "wrote 3 bytes to link\n");
        let told =
            format!("[link had the mode {mode} and has {after} now: a write takes set-id bits away]\n");
        assert_eq!(result.stderr, if mode == after { String::new() } else { told });
        assert_eq!(stdout_of(sandbox, "stat -c %a f; rm f").await, format!("{after}\n"), "{mode}");
    }
    // A patch that is taken back has changed nothing.
    stdout_of(sandbox, "echo old > f; chmod 4755 f").await;
    let patch =
        "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-old\n+new\n--- /dev/null\n+++ /proc/made\n@@ -0,0 +1 @@\n+x\n";
    let patch = patch.replace("a/f", "f").replace("b/f", "f");
    fails(sandbox, "file_edit", json!({"patch": patch}), 1, "nothing was changed").await;
    assert_eq!(stdout_of(sandbox, "cat f; stat -c %a f").await, "old\n4755\n");
}

async fn odd_paths_are_paths(sandbox: &Sandbox) {
    for name in
        ["a; touch pwned", "$(touch pwned)", "quo'te\"", "new\nline", "-rf", "*", "ä ü", "`x`", "a\\b"]
    {
        let path = format!("odd/{name}");
        write(sandbox, &path, name).await;
        assert_eq!(read(sandbox, &path).await, name);
        let params = json!({"path": path, "old": name, "new": "other"});
        assert_eq!(done(sandbox, "file_edit", params).await, format!("replaced 1 place in {path}\n"));
        assert_eq!(read(sandbox, &path).await, "other");
        let found = done(sandbox, "search", json!({"pattern": "^other$", "path": path})).await;
        assert_eq!(found, format!("{}:1:other\n", path.replace('\n', "\\n")));
        done(sandbox, "file_delete", json!({"path": path})).await;
        fails(sandbox, "file_read", json!({"path": path}), 1, "No such file").await;
    }
    fails(sandbox, "file_read", json!({"path": "odd/f; echo injected"}), 1, "No such file").await;
    assert_eq!(stdout_of(sandbox, "ls -A odd; ls -A").await, "odd\n", "nothing else was made");
}

async fn lines_are_read_by_number(sandbox: &Sandbox) {
    write(sandbox, "f", "one\ntwo\nthree\nfour").await;
    for (params, text) in [
        (json!({}), "one\ntwo\nthree\nfour"),
        (json!({"start_line": 1, "end_line": 0}), "one\ntwo\nthree\nfour"),
        (json!({"start_line": 3}), "three\nfour"),
        (json!({"end_line": 2}), "one\ntwo\n"),
        (json!({"start_line": 2, "end_line": 3}), "two\nthree\n"),
        (json!({"start_line": 2, "end_line": 2}), "two\n"),
        (json!({"start_line": 4, "end_line": 100}), "four"),
        (json!({"start_line": 5}), ""),
    ] {
        let mut asked = params.clone();
        asked["path"] = "f".into();
        assert_eq!(done(sandbox, "file_read", asked).await, text, "{params}");
    }
    let result = call(sandbox, "file_read", json!({"path": "f", "start_line": 9})).await;
    assert_eq!(result.output, "[f has 4 lines; there is no line 9]\n");
    stdout_of(sandbox, "seq 1000000 > long").await;
    let params = json!({"path": "long", "start_line": 999_999});
    assert_eq!(done(sandbox, "file_read", params).await, "999999\n1000000\n");
    let result = call(sandbox, "file_read", json!({"path": "long"})).await;
    assert!(result.stdout.len() <= 256 << 10 && result.stdout.starts_with("1\n2\n"));
    assert!(
        result.stderr.contains("6888896 bytes") && result.stderr.contains("read on from line"),
        "{}",
        result.stderr
    );
    assert!(read(sandbox, "/proc/self/status").await.contains("Pid:"), "a file without a size");
    // A line of more than is shown: who reads on as he is told sees all of it once.
    stdout_of(sandbox, "(echo first; head -c 300000 /dev/zero | tr '\\0' x; echo; echo last) > wide").await;
    let result = call(sandbox, "file_read", json!({"path": "wide"})).await;
    assert!(result.stderr.contains("read on from line 2]"), "{}", result.stderr);
    let result = call(sandbox, "file_read", json!({"path": "wide", "start_line": 2})).await;
    assert!(result.stdout.len() == 256 << 10 && result.stdout.bytes().all(|byte| byte == b'x'));
    let told = "the first 262144 of line 2, which has more; `tail -c +262151` in `shell` shows the rest; read on \
                behind that line from line 3]";
    assert!(result.stderr.contains(told), "{}", result.stderr);
    let rest = stdout_of(sandbox, "tail -c +262151 wide").await;
    assert_eq!(rest, format!("{}\nlast\n", "x".repeat(300_000 - (256 << 10))));
    assert_eq!(done(sandbox, "file_read", json!({"path": "wide", "start_line": 3})).await, "last\n");
    stdout_of(sandbox, "rm wide").await;
}

async fn what_is_no_text_is_not_shown(sandbox: &Sandbox) {
    stdout_of(
        sandbox,
        "truncate -s 1G sparse; printf 'a\\0b' > binary; mkfifo pipe; mkdir dir; ln -s loop loop",
    )
    .await;
    for (path, words) in [
        ("sparse", "binary (1073741824 bytes)"),
        ("binary", "binary (3 bytes)"),
        ("pipe", "a pipe"),
        ("dir", "a directory"),
        ("loop", "symbolic links"),
        ("/dev/zero", "a device"),
        ("nothing", "No such file"),
    ] {
        within(path, fails(sandbox, "file_read", json!({"path": path}), 1, words)).await;
        let edit = json!({"path": path, "old": "a", "new": "b"});
        if !["binary", "nothing", "sparse"].contains(&path) {
            within(path, fails(sandbox, "file_edit", edit, 1, words)).await;
        }
    }
    let edit = json!({"path": "sparse", "old": "a", "new": "b"});
    fails(sandbox, "file_edit", edit, 1, "too much to edit").await;
    let odd = call(sandbox, "file_read", json!({"path": "/proc/self/mem"})).await;
    assert_eq!(odd.exit_code, 1, "whatever the kernel says to it: {odd:?}");
    stdout_of(sandbox, "printf 'caf\\351\\n' > latin").await;
    assert_eq!(read(sandbox, "latin").await, "caf\u{fffd}\n");
}

async fn a_piece_is_replaced_exactly(sandbox: &Sandbox) {
    let edit = |old: &str, new: &str, all: bool| json!({"path": "f", "old": old, "new": new, "all": all});
    write(sandbox, "f", "a\nb\na\n").await;
    stdout_of(sandbox, "chmod 755 f").await;
    fails(sandbox, "file_edit", edit("a", "x", false), 1, "occurs 2 times, on lines 1, 3").await;
    fails(sandbox, "file_edit", edit("z", "x", false), 1, "occurs 0 times").await;
    fails(sandbox, "file_edit", edit("", "x", false), 1, "empty").await;
    assert_eq!(read(sandbox, "f").await, "a\nb\na\n", "nothing was changed");
    assert_eq!(done(sandbox, "file_edit", edit("b\na", "$1 \\0 &", false)).await, "replaced 1 place in f\n");
    assert_eq!(read(sandbox, "f").await, "a\n$1 \\0 &\n", "the text is text, and no pattern");
    write(sandbox, "f", "a.a.a").await;
    assert_eq!(done(sandbox, "file_edit", edit("a", "", true)).await, "replaced 3 places in f\n");
    assert_eq!(stdout_of(sandbox, "cat f; stat -c ' %a' f").await, ".. 755\n");
    fails(sandbox, "file_edit", json!({"path": "g", "old": "a", "new": "b"}), 1, "not there").await;
}

async fn a_patch_is_applied_whole_or_not_at_all(sandbox: &Sandbox) {
    let apply = |patch: &str| json!({"patch": patch});
    stdout_of(
        sandbox,
        "seq 20 > n; cp n m; sed -e 's/^3$/three/' -e 's/^18$/eighteen/' n > n2; echo gone > old",
    )
    .await;
    let patch = stdout_of(sandbox, "diff -u --label a/n n --label b/n n2 || true").await;
    let more = "--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n\
                --- /dev/null\n+++ b/sub/made\n@@ -0,0 +1,2 @@\n+x\n+y\n";
    let said = done(sandbox, "file_edit", apply(&format!("{patch}{more}"))).await;
    assert_eq!(said, "patched n\nremoved old\npatched sub/made\n");
    assert_eq!(stdout_of(sandbox, "cmp n n2; cat sub/made; ls").await, "x\ny\nm\nn\nn2\nsub\n");
    // The second file does not fit, so the first stays as it is.
    let two = "--- a/m\n+++ b/m\n@@ -1 +1 @@\n-1\n+one\n--- a/n\n+++ b/n\n@@ -1 +1 @@\n-9999\n+x\n";
    fails(sandbox, "file_edit", apply(two), 1, "hunk 1 expects \"9999\" as line 1").await;
    assert_eq!(stdout_of(sandbox, "head -1 m").await, "1\n");
    fails(sandbox, "file_edit", apply(more), 1, "old is not there").await;
    fails(sandbox, "file_edit", apply("--- /dev/null\n+++ b/m\n@@ -0,0 +1 @@\n+x\n"), 1, "there already")
        .await;
    // Neither does one that is to be made where something is, or twice, or changed twice.
    let first = "--- a/m\n+++ b/m\n@@ -1 +1 @@\n-1\n+one\n";
    let made = "--- /dev/null\n+++ b/fresh\n@@ -0,0 +1 @@\n+x\n";
    let moved = "--- a/n2\n+++ b/n\n@@ -1 +1 @@\n-1\n+one\n";
    for (more, why) in [
        (moved.to_owned(), "n is to be made by the patch, and is there already"),
        (format!("{made}{made}"), "changes fresh twice"),
        (first.replace("b/m", "b/./m").replace("a/m", "a/./m"), "changes ./m twice"),
    ] {
        fails(sandbox, "file_edit", apply(&format!("{first}{more}")), 1, why).await;
        assert_eq!(stdout_of(sandbox, "head -1 m; cmp n n2; ls").await, "1\nm\nn\nn2\nsub\n");
    }
    // Where one cannot be written, those that were are as before.
    stdout_of(sandbox, "echo gone > old; chmod 640 m old").await;
    let nowhere = "--- /dev/null\n+++ /proc/made\n@@ -0,0 +1 @@\n+x\n";
    let patch = format!("{first}{}{nowhere}", more.replace("sub/made", "d/e/made"))
        .replace("a/", "")
        .replace("b/", "");
    fails(sandbox, "file_edit", apply(&patch), 1, "nothing was changed").await;
    let look = "head -1 m; cat old; stat -c %a m old; ls; rm old";
    assert_eq!(stdout_of(sandbox, look).await, "1\ngone\n640\n640\nm\nn\nn2\nold\nsub\n");
    fails(sandbox, "file_edit", apply("nonsense"), 1, "cannot be read").await;
    let named = json!({"path": "m", "patch": "@@ -1,2 +1,2 @@\n-1\n+one\n 2\n"});
    done(sandbox, "file_edit", named).await;
    assert_eq!(stdout_of(sandbox, "head -2 m").await, "one\n2\n");
}

async fn a_patch_of_git_says_more_than_lines(sandbox: &Sandbox) {
    let apply = |patch: &str| json!({"patch": patch});
    stdout_of(sandbox, "mkdir git; cd git; echo a > x; echo a > y; touch none; echo a > 'ä'; chmod 644 *")
        .await;
    let patch = "diff --git a/git/empty b/git/empty\nnew file mode 100644\nindex 0000000..e69de29\n\
                 diff --git a/git/none b/git/none\ndeleted file mode 100644\nindex e69de29..0000000\n\
                 diff --git a/git/x b/git/x\nold mode 100644\nnew mode 100755\n\
                 diff --git a/git/y b/git/y\nindex 7898192..6178079 100644\n--- a/git/y\n+++ b/git/y\n\
                 @@ -1 +1 @@\n-a\n+b\n\
                 diff --git \"a/git/\\303\\244\" \"b/git/\\303\\244\"\nindex 7898192..6178079 100644\n\
                 --- \"a/git/\\303\\244\"\n+++ \"b/git/\\303\\244\"\n@@ -1 +1 @@\n-a\n+b\n";
    done(sandbox, "file_edit", apply(patch)).await;
    let look = "cd git; stat -c '%n %a %s' *; cat x y 'ä'";
    let expected = "empty 644 0\nx 755 2\ny 644 2\nä 644 2\na\nb\nb\n";
    assert_eq!(stdout_of(sandbox, look).await, expected);
    let not_empty = "diff --git a/git/x b/git/x\ndeleted file mode 100755\nindex e69de29..0000000\n";
    fails(sandbox, "file_edit", apply(not_empty), 1, "holds more than it says").await;
    let link =
        "diff --git a/git/l b/git/l\nnew file mode 120000\n--- /dev/null\n+++ b/git/l\n@@ -0,0 +1 @@\n+x\n";
    fails(sandbox, "file_edit", apply(link), 1, "symbolic link").await;
    assert_eq!(stdout_of(sandbox, look).await, expected);
    stdout_of(sandbox, "rm -r git").await;
}

async fn directories_are_listed(sandbox: &Sandbox) {
    stdout_of(sandbox, "mkdir -p d/sub/deep d/.hidden; touch d/b d/a d/sub/x d/sub/deep/y; ln -s .. d/up")
        .await;
    let list = async |params: Value| done(sandbox, "file_list", params).await;
    assert_eq!(list(json!({})).await, "d/\n");
    assert_eq!(list(json!({"path": "d"})).await, "a\nb\nsub/\nup -> ..\n");
    assert_eq!(list(json!({"path": "d", "hidden": true})).await, ".hidden/\na\nb\nsub/\nup -> ..\n");
    assert_eq!(list(json!({"path": "d", "depth": 2})).await, "a\nb\nsub/\nsub/deep/\nsub/x\nup -> ..\n");
    let all = list(json!({"path": "d/", "depth": 64})).await;
    assert_eq!(all, "a\nb\nsub/\nsub/deep/\nsub/deep/y\nsub/x\nup -> ..\n", "a link is no way around");
    fails(sandbox, "file_list", json!({"path": "d/a"}), 1, "Not a directory").await;
    fails(sandbox, "file_list", json!({"path": "no"}), 1, "No such file").await;
    stdout_of(sandbox, "mkdir many; cd many; seq -f 'f%05g' 3000 | xargs touch; touch \"$(printf 'a\\nb')\"")
        .await;
    let result = call(sandbox, "file_list", json!({"path": "many"})).await;
    assert!(result.stdout.starts_with("a\\nb\nf00001\n") && result.stdout.lines().count() == 2000);
    assert!(result.stderr.contains("only the first 2000"), "{}", result.stderr);
    // Though nothing was left to be listed.
    stdout_of(sandbox, "mkdir -p more/z; cd more; touch $(seq 1900); cd z; touch $(seq 300)").await;
    let result = call(sandbox, "file_list", json!({"path": "more", "depth": 2})).await;
    assert_eq!(result.stdout.lines().count(), 2000);
    assert!(result.stderr.contains("only the first 2000"), "{}", result.stderr);
}

async fn what_is_removed_is_gone(sandbox: &Sandbox) {
    stdout_of(sandbox, "mkdir -p d/e; touch d/e/f g; ln -s d link").await;
    assert_eq!(done(sandbox, "file_delete", json!({"path": "g"})).await, "removed g\n");
    done(sandbox, "file_delete", json!({"path": "link", "recursive": true})).await;
    assert_eq!(stdout_of(sandbox, "ls -R").await, ".:\nd\n\n./d:\ne\n\n./d/e:\nf\n", "what it led to stays");
    fails(sandbox, "file_delete", json!({"path": "d"}), 1, "not empty").await;
    done(sandbox, "file_delete", json!({"path": "d", "recursive": true})).await;
    assert_eq!(stdout_of(sandbox, "ls -A").await, "");
    fails(sandbox, "file_delete", json!({"path": "g"}), 1, "No such file").await;
    fails(sandbox, "file_delete", json!({"path": "d", "recursive": true}), 1, "No such file").await;
    // What has no name is not removed, nor is anything in it.
    done(sandbox, "file_write", json!({"path": "e/kept", "content": "k"})).await;
    for path in [".", "e/.", "e/..", "/", "//"] {
        fails(sandbox, "file_delete", json!({"path": path, "recursive": true}), 1, "Invalid argument").await;
    }
    assert_eq!(done(sandbox, "file_read", json!({"path": "e/kept"})).await, "k");
    assert_eq!(done(sandbox, "file_delete", json!({"path": "e/", "recursive": true})).await, "removed e/\n");
    fails(sandbox, "file_read", json!({"path": "e/kept"}), 1, "No such file").await;
}
