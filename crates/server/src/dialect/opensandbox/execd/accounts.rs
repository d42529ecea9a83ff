//! The names of a box's users and groups, as its own files have them.

use glasshouse_sandbox::Sandbox;

use crate::limits::ACCOUNTS_BYTES;

/// Names by their numbers.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    users: Vec<(String, u32)>,
    groups: Vec<(String, u32)>,
}

impl Accounts {
    /// Those of a box. One that has no such files has no names.
    pub(super) async fn of(sandbox: &Sandbox) -> Accounts {
        let read = async |path| {
            let bytes = sandbox.read_file(path, 0, Some(ACCOUNTS_BYTES)).await.unwrap_or_default();
            parse(&String::from_utf8_lossy(&bytes))
        };
        Accounts { users: read("/etc/passwd").await, groups: read("/etc/group").await }
    }

    pub(super) fn user(&self, uid: u32) -> String {
        name(&self.users, uid)
    }

    pub(super) fn group(&self, gid: u32) -> String {
        name(&self.groups, gid)
    }

    pub(super) fn uid(&self, user: &str) -> Option<u32> {
        number(&self.users, user)
    }

    pub(super) fn gid(&self, group: &str) -> Option<u32> {
        number(&self.groups, group)
    }
}

fn parse(text: &str) -> Vec<(String, u32)> {
    let entry = |line: &str| {
        let mut words = line.split(':');
        let name = words.next()?.to_owned();
        Some((name, words.nth(1)?.parse().ok()?))
    };
    text.lines().filter_map(entry).collect()
}

fn name(known: &[(String, u32)], number: u32) -> String {
    let found = known.iter().find(|(_, known)| *known == number);
    found.map_or_else(|| number.to_string(), |(name, _)| name.clone())
}

fn number(known: &[(String, u32)], name: &str) -> Option<u32> {
    let found = known.iter().find(|(known, _)| known == name).map(|(_, number)| *number);
    found.or_else(|| name.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_found() {
        let users = parse("root:x:0:0:root:/root:/bin/sh\nbroken\nuser:x:1000:1000::/:\n:x:bad");
        let accounts = Accounts { users, groups: parse("root:x:0:\nnogroup:x:65534:") };
        assert_eq!((accounts.user(1000), accounts.user(5)), ("user".to_owned(), "5".to_owned()));
        assert_eq!((accounts.group(65534), accounts.gid("nogroup")), ("nogroup".to_owned(), Some(65534)));
        assert_eq!(
            (accounts.uid("user"), accounts.uid("7"), accounts.uid("none")),
            (Some(1000), Some(7), None)
        );
    }
}
