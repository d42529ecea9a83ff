//! Directories: listed, made, moved, removed.

use std::collections::BTreeSet;

use glasshouse_sandbox::{ErrorKind, FileKind, Sandbox};

use crate::stage::{exit_of, on_every_runtime, perl, stdout_of};

on_every_runtime![
    a_directory_is_listed_page_by_page,
    a_page_has_at_most_what_was_asked_for,
    an_entry_says_what_it_is,
    names_that_are_no_text_are_listed,
    names_that_are_no_text_are_listed_page_by_page,
    links_are_followed_only_when_asked,
    a_directory_is_made_once,
    a_move_does_not_overwrite_unless_asked,
    a_directory_is_moved_with_all_in_it,
    files_links_and_empty_directories_are_removed,
    a_deep_and_wide_tree_is_removed,
    removal_does_not_follow_links,
    modes_are_changed,
];

async fn a_directory_is_listed_page_by_page(sandbox: &Sandbox) {
    stdout_of(sandbox, "mkdir many; cd many; seq -f 'file %g' 2500 | xargs -d '\\n' touch").await;
    let mut pages = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = sandbox.list_dir("many", after.as_deref(), Some(1000)).await.unwrap();
        pages.push(page.entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>());
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [1000, 1000, 500]);
    let names = pages.concat();
    let expected: BTreeSet<String> = (1..=2500).map(|n| format!("file {n}")).collect();
    assert_eq!(names, expected.into_iter().collect::<Vec<_>>(), "sorted, none twice, none missing");
}

async fn a_page_has_at_most_what_was_asked_for(sandbox: &Sandbox) {
    stdout_of(sandbox, "mkdir few; cd few; touch a b c").await;
    let names = async |after: Option<&str>, limit: Option<usize>| {
        let page = sandbox.list_dir("few", after, limit).await.unwrap();
        (page.entries.into_iter().map(|entry| entry.name).collect::<String>(), page.next)
    };
    assert_eq!(names(None, None).await, ("abc".into(), None));
    assert_eq!(names(None, Some(2)).await, ("ab".into(), Some("b".into())));
    assert_eq!(names(Some("b"), Some(2)).await, ("c".into(), None));
    assert_eq!(names(None, Some(3)).await, ("abc".into(), None));
    assert_eq!(names(Some("bb"), None).await, ("c".into(), None), "a name that is gone is a place, too");
    assert_eq!(names(Some("z"), None).await, (String::new(), None));
    stdout_of(sandbox, "mkdir empty").await;
    assert_eq!(sandbox.list_dir("empty", None, None).await.unwrap().entries, []);
    let error = sandbox.list_dir("few/a", None, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

async fn an_entry_says_what_it_is(sandbox: &Sandbox) {
    let line = "mkdir -m 711 dir; printf 12345 > file; chmod 640 file; ln -s file link; ln -s nowhere dangling; \
        mkfifo pipe; touch -d '2001-02-03 04:05:06.789 UTC' file";
    stdout_of(sandbox, line).await;
    let entries = sandbox.list_dir(".", None, None).await.unwrap().entries;
    let seen: Vec<_> =
        entries.iter().map(|entry| (entry.name.as_str(), entry.kind, entry.target.as_deref())).collect();
    let expected = [
        ("dangling", FileKind::Link, Some("nowhere")),
        ("dir", FileKind::Directory, None),
        ("file", FileKind::File, None),
        ("link", FileKind::Link, Some("file")),
        ("pipe", FileKind::Other, None),
    ];
    assert_eq!(seen, expected);
    for entry in &entries {
        assert_eq!(&sandbox.stat(&entry.name, false).await.unwrap(), entry, "one by one they look the same");
    }
    let file = &entries[2];
    assert_eq!((file.size, file.mode, file.modified_ms), (5, 0o640, 981_173_106_789));
    assert_eq!(entries[1].mode, 0o711);
    let null = sandbox.stat("/dev/null", false).await.unwrap();
    assert_eq!((null.kind, null.name.as_str()), (FileKind::Other, "null"));
    assert_eq!(sandbox.stat("/", false).await.unwrap().kind, FileKind::Directory);
}

async fn names_that_are_no_text_are_listed(sandbox: &Sandbox) {
    let made = perl(r#"mkdir 'odd'; open F, '>', "odd/\xff\xfename"; open F, '>', "odd/plain""#);
    assert!(exit_of(sandbox, made).await.success());
    let entries = sandbox.list_dir("odd", None, None).await.unwrap().entries;
    let seen: Vec<_> = entries.iter().map(|entry| (entry.name.as_str(), entry.name_lossy)).collect();
    assert_eq!(seen, [("plain", false), ("\u{fffd}\u{fffd}name", true)]);
}

async fn names_that_are_no_text_are_listed_page_by_page(sandbox: &Sandbox) {
    let made =
        perl(r#"mkdir 'pages'; open F, '>', "pages/.\xff$_" for 100..109; open F, '>', "pages/.\xee""#);
    assert!(exit_of(sandbox, made).await.success());
    let (mut sizes, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = sandbox.list_dir("pages", after.as_deref(), Some(4)).await.unwrap();
        sizes.push(page.entries.len());
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
        assert!(sizes.len() < 10, "the same page comes again: {after:?}");
    }
    assert_eq!(sizes, [4, 4, 3]);
}

async fn links_are_followed_only_when_asked(sandbox: &Sandbox) {
    stdout_of(sandbox, "mkdir dir; echo x > dir/file; ln -s dir link; ln -s link far").await;
    let seen = sandbox.stat("far", false).await.unwrap();
    assert_eq!((seen.kind, seen.target.as_deref()), (FileKind::Link, Some("link")));
    let seen = sandbox.stat("far", true).await.unwrap();
    assert_eq!((seen.kind, seen.target), (FileKind::Directory, None));
    assert_eq!(sandbox.read_file("far/file", 0, None).await.unwrap(), b"x\n");
    assert_eq!(sandbox.list_dir("far", None, None).await.unwrap().entries.len(), 1);
}

async fn a_directory_is_made_once(sandbox: &Sandbox) {
    let kind =
        async |path: &str, parents: bool| sandbox.make_dir(path, parents).await.map_err(|error| error.kind());
    assert_eq!(kind("one", false).await, Ok(()));
    assert_eq!(kind("one", false).await, Err(ErrorKind::Exists));
    assert_eq!(kind("one", true).await, Ok(()), "with its parents it may be there already");
    assert_eq!(kind("a/b/c", false).await, Err(ErrorKind::NotFound));
    assert_eq!(kind("a/b/c", true).await, Ok(()));
    assert_eq!(kind("a/b/c/", true).await, Ok(()));
    stdout_of(sandbox, "[ -d a/b/c ] && touch file").await;
    assert_eq!(kind("file", false).await, Err(ErrorKind::Exists));
    assert_eq!(kind("file/below", true).await, Err(ErrorKind::Invalid));
    assert!(kind("file", true).await.is_err(), "a file is no directory");
}

async fn a_move_does_not_overwrite_unless_asked(sandbox: &Sandbox) {
    stdout_of(sandbox, "echo 1 > one; echo 2 > two").await;
    let error = sandbox.move_file("one", "two", false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
    assert_eq!(stdout_of(sandbox, "cat one two").await, "1\n2\n", "nothing has moved");
    sandbox.move_file("one", "two", true).await.unwrap();
    assert_eq!(stdout_of(sandbox, "cat two; ls").await, "1\ntwo\n");
    sandbox.move_file("two", "three", false).await.unwrap();
    assert_eq!(stdout_of(sandbox, "ls").await, "three\n");
    assert_eq!(sandbox.move_file("two", "four", false).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(sandbox.move_file("three", "no/where", false).await.unwrap_err().kind(), ErrorKind::NotFound);
}

async fn a_directory_is_moved_with_all_in_it(sandbox: &Sandbox) {
    stdout_of(sandbox, "mkdir -p from/deep full; echo x > from/deep/file; touch full/file").await;
    sandbox.move_file("from", "to", false).await.unwrap();
    assert_eq!(stdout_of(sandbox, "cat to/deep/file").await, "x\n");
    let error = sandbox.move_file("to", "full", true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists, "what is full is not replaced: {error}");
    let error = sandbox.move_file("to", "to/deep/below", false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

async fn files_links_and_empty_directories_are_removed(sandbox: &Sandbox) {
    stdout_of(
        sandbox,
        "mkdir empty full; touch file full/file; ln -s file link; ln -s full linked; mkfifo pipe",
    )
    .await;
    for path in ["link", "linked", "file", "empty", "pipe"] {
        sandbox.remove_file(path, false).await.unwrap();
    }
    assert_eq!(stdout_of(sandbox, "find").await, ".\n./full\n./full/file\n");
    let error = sandbox.remove_file("full", false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists, "there is something in it: {error}");
    for recursive in [false, true] {
        let error = sandbox.remove_file("missing", recursive).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    sandbox.remove_file("full", true).await.unwrap();
    assert_eq!(stdout_of(sandbox, "find").await, ".\n");
}

async fn a_deep_and_wide_tree_is_removed(sandbox: &Sandbox) {
    // Deeper than any path can name, and directories that their owner may not look into.
    let script = r#"
        mkdir 'tree'; mkdir 'tree/wide'; for (1..3000) { open F, '>', "tree/wide/$_" }
        mkdir 'tree/closed'; open F, '>', 'tree/closed/file';
        chdir 'tree'; for (1..3000) { mkdir 'deeper' or die $!; chdir 'deeper' or die $! } open F, '>', 'bottom'
    "#;
    assert!(exit_of(sandbox, perl(script)).await.success());
    sandbox.remove_file("tree", true).await.unwrap();
    assert_eq!(stdout_of(sandbox, "find").await, ".\n");
}

async fn removal_does_not_follow_links(sandbox: &Sandbox) {
    stdout_of(
        sandbox,
        "mkdir keep tree; touch keep/file; ln -s ../keep tree/link; ln -s ../keep/file tree/other",
    )
    .await;
    sandbox.remove_file("tree", true).await.unwrap();
    assert_eq!(stdout_of(sandbox, "find").await, ".\n./keep\n./keep/file\n");
    stdout_of(sandbox, "ln -s keep link").await;
    sandbox.remove_file("link", true).await.unwrap();
    assert_eq!(stdout_of(sandbox, "find").await, ".\n./keep\n./keep/file\n");
}

async fn modes_are_changed(sandbox: &Sandbox) {
    stdout_of(sandbox, "mkdir dir; touch file; ln -s file link").await;
    for (path, mode) in [("file", 0o000), ("file", 0o751), ("dir", 0o1777), ("link", 0o640)] {
        sandbox.chmod(path, mode).await.unwrap();
        assert_eq!(sandbox.stat(path, true).await.unwrap().mode, mode, "{path}");
    }
    assert_eq!(stdout_of(sandbox, "stat -c %a file dir").await, "640\n1777\n");
    assert_eq!(sandbox.chmod("missing", 0o600).await.unwrap_err().kind(), ErrorKind::NotFound);
}
