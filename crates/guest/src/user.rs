//! Who is who in the box, read from its own files, which may say anything.

use std::io::Read;
use std::os::fd::OwnedFd;

use glasshouse_linux::resolve;
use glasshouse_linux::rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat};
use glasshouse_linux::rustix::process::{getgid, getuid};

/// No passwd file is believed beyond this.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Further groups of one user.
const GROUPS_MAX: usize = 64;

/// A user of the box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) name: Option<String>,
    pub(crate) home: Option<String>,
    pub(crate) shell: Option<String>,
}

impl Account {
    /// Whoever the guest is.
    pub(crate) fn own() -> Account {
        let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
        by_id(&read("/etc/passwd"), uid).unwrap_or_else(|| Account::bare(uid, gid))
    }

    fn bare(uid: u32, gid: u32) -> Account {
        Account { uid, gid, groups: Vec::new(), name: None, home: None, shell: None }
    }

    /// `name`, `uid`, `name:group` or `uid:gid`.
    pub(crate) fn find(text: &str) -> Result<Account, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let passwd = read("/etc/passwd");
        let mut account = match id(user) {
            Some(uid) => by_id(&passwd, uid).unwrap_or_else(|| Account::bare(uid, uid)),
            None => by_name(&passwd, user)
                .ok_or_else(|| match user {
                    "root" => String::new(),
                    _ => format!("the box has no user {user:?}; name one of its /etc/passwd, or a number"),
                })
                .or_else(|message| if message.is_empty() { Ok(Account::bare(0, 0)) } else { Err(message) })?,
        };
        let groups = read("/etc/group");
        if let Some(group) = group {
            account.gid = match id(group) {
                Some(gid) => gid,
                None => group_by_name(&groups, group)
                    .ok_or_else(|| format!("the box has no group {group:?}; name one of its /etc/group"))?,
            };
        }
        if let Some(name) = &account.name {
            account.groups = groups_of(&groups, name);
        }
        Ok(account)
    }
}

/// The number of a user or group. The last one is none: to the kernel it says "as before", and before is the guest.
fn id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != u32::MAX)
}

fn read(path: &str) -> String {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let Ok(fd): Result<OwnedFd, _> =
        resolve::open(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
    else {
        return String::new();
    };
    if !fstat(&fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile) {
        return String::new();
    }
    // Most fit, so that one read finds all and a second one the end.
    let mut bytes = Vec::with_capacity(4096);
    let _ = std::fs::File::from(fd).take(FILE_BYTES_MAX).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn accounts(passwd: &str) -> impl Iterator<Item = Account> {
    passwd.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, shell] = fields[..] else {
            return None;
        };
        Some(Account {
            uid: id(uid)?,
            gid: id(gid)?,
            groups: Vec::new(),
            name: Some(name.into()),
            home: Some(home.into()),
            shell: Some(shell.into()),
        })
    })
}

fn by_id(passwd: &str, uid: u32) -> Option<Account> {
    accounts(passwd).find(|account| account.uid == uid)
}

fn by_name(passwd: &str, name: &str) -> Option<Account> {
    accounts(passwd).find(|account| account.name.as_deref() == Some(name))
}

fn group_by_name(group: &str, name: &str) -> Option<u32> {
    group.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() == Some(name) { id(fields.nth(1)?) } else { None }
    })
}

fn groups_of(group: &str, user: &str) -> Vec<u32> {
    let member = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let [_, _, gid, members] = fields[..] else {
            return None;
        };
        if members.split(',').any(|m| m == user) { id(gid) } else { None }
    };
    group.lines().filter_map(member).take(GROUPS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nbroken\nuser:x:1000:100:,,,:/home/user:/bin/bash\n";
    const GROUP: &str = "root:x:0:\nstaff:x:50:user,other\nbad\n";

    #[test]
    fn accounts_are_found_by_name_and_number() {
        assert_eq!(by_name(PASSWD, "user").unwrap().uid, 1000);
        assert_eq!(by_id(PASSWD, 1000).unwrap().home.as_deref(), Some("/home/user"));
        assert_eq!(by_name(PASSWD, "broken"), None);
    }

    #[test]
    fn the_number_that_means_as_before_is_nobody() {
        assert_eq!((id("4294967295"), id("-1"), id("4294967294")), (None, None, Some(u32::MAX - 1)));
        assert_eq!(by_name("evil:x:4294967295:0::/:/bin/sh\n", "evil"), None);
        assert!(Account::find("4294967295").is_err() && Account::find("0:4294967295").is_err());
    }

    #[test]
    fn groups_come_from_their_member_lists() {
        assert_eq!(groups_of(GROUP, "user"), [50]);
        assert_eq!(group_by_name(GROUP, "staff"), Some(50));
    }
}
