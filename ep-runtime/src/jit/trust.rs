//! Which users could have put a file in its place: only files of this user or of the system are loaded.
//!
//! The file uses the standard library only, because `xtask` includes it too.

use std::path::Path;

/// Why what lies at `path` must not be loaded, as a clause; none if only this user and the system's
/// can have put it there.
pub(crate) fn distrust(path: &Path) -> Option<String> {
    owners::distrust(path)
}

/// Why nothing in the folder `place` can be a project's `.cuda`: others may make one there.
pub(crate) fn shared(place: &Path) -> Option<String> {
    owners::shared(place)
}

/// Why other users could replace files that this user creates in `folder`, as a clause.
pub(crate) fn exposed(folder: &Path) -> Option<String> {
    owners::exposed(folder)
}

#[cfg(unix)]
mod owners {
    use std::fs::{self, Metadata};
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    unsafe extern "C" {
        fn geteuid() -> u32;
    }

    /// The owner of a file or folder, and the users that may write it.
    #[derive(Clone, Copy)]
    struct Rights {
        owner: u32,
        group: u32,
        mode: u32,
    }

    const SYSTEM: u32 = 0;
    const GROUP_WRITES: u32 = 0o020;
    const ALL_WRITE: u32 = 0o002;
    /// In such a folder no user can replace the files of another.
    const STICKY: u32 = 0o1000;

    impl Rights {
        fn of(about: &Metadata) -> Rights {
            Rights { owner: about.uid(), group: about.gid(), mode: about.mode() & 0o7777 }
        }

        /// What keeps `user` from trusting what is there; `is_above`: it only leads there.
        fn flaw(self, user: u32, is_above: bool) -> Option<String> {
            let Rights { owner, group, mode } = self;
            if owner != user && owner != SYSTEM {
                return Some(format!("belongs to user {owner}, and this process to user {user}"));
            }
            if is_above && mode & STICKY != 0 {
                return None;
            }
            if mode & ALL_WRITE != 0 {
                return Some(format!("can be written by everybody (mode {mode:04o})"));
            }
            // Where each user has a group of the same number, it has no other members.
            let is_own = group == SYSTEM || (group == user && owner == user);
            (mode & GROUP_WRITES != 0 && !is_own)
                .then(|| format!("can be written by group {group} (mode {mode:04o})"))
        }
    }

    fn user() -> u32 {
        // SAFETY: the call takes nothing, touches no memory and cannot fail.
        unsafe { geteuid() }
    }

    pub(super) fn distrust(path: &Path) -> Option<String> {
        distrust_for(path, user(), false)
    }

    pub(super) fn exposed(folder: &Path) -> Option<String> {
        distrust_for(folder, user(), true)
    }

    /// The first flaw of `path` and of the folders above it. `is_above`: `path` itself only holds the files.
    fn distrust_for(path: &Path, user: u32, is_above: bool) -> Option<String> {
        let real = match fs::canonicalize(path) {
            Ok(real) => real,
            Err(error) => return Some(format!("{} cannot be read: {error}", path.display())),
        };
        real.ancestors().find_map(|place| flaw_of(place, user, is_above || place != real))
    }

    pub(super) fn shared(place: &Path) -> Option<String> {
        flaw_of(place, user(), false)
    }

    fn flaw_of(place: &Path, user: u32, is_above: bool) -> Option<String> {
        let flaw = match fs::metadata(place) {
            Ok(about) => Rights::of(&about).flaw(user, is_above)?,
            Err(error) => format!("cannot be read: {error}"),
        };
        Some(format!("{} {flaw}", place.display()))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn what_others_own_or_write_is_not_trusted() {
            let flaw = |owner, group, mode, is_above| {
                Rights { owner, group, mode }.flaw(1000, is_above).unwrap_or_default()
            };
            for (owner, group, mode) in
                [(1000, 1000, 0o755), (0, 0, 0o755), (1000, 1000, 0o775), (0, 0, 0o775)]
            {
                assert_eq!(flaw(owner, group, mode, false), "");
            }
            let foreign = "belongs to user 1001, and this process to user 1000";
            assert_eq!(flaw(1001, 1001, 0o755, false), foreign);
            assert_eq!(flaw(1001, 1001, 0o1777, true), foreign);
            let group = "can be written by group 50 (mode 0775)";
            assert_eq!(flaw(1000, 50, 0o775, false), group);
            assert_eq!(flaw(1000, 50, 0o775, true), group);
            // The own group of this user, on what belongs to the system.
            assert_eq!(flaw(0, 1000, 0o775, true), "can be written by group 1000 (mode 0775)");
            assert_eq!(flaw(0, 0, 0o777, true), "can be written by everybody (mode 0777)");
            assert_eq!(flaw(0, 0, 0o1777, false), "can be written by everybody (mode 1777)");
            assert_eq!(flaw(0, 0, 0o1777, true), "", "such as /tmp above a folder of the user");
        }

        #[test]
        fn every_folder_above_counts() {
            let own = std::env::current_dir().unwrap();
            let owner = fs::metadata(&own).unwrap().uid();
            let other = owner.wrapping_add(1);
            let said = distrust_for(&own, other, false);
            match owner {
                SYSTEM => assert_eq!(said, None),
                _ => assert!(said.unwrap().contains("belongs to user")),
            }
            assert!(
                distrust_for(&own.join("no such file"), owner, false).unwrap().contains("be read")
            );
        }
    }
}

/// Elsewhere the system keeps the user's folders private.
#[cfg(not(unix))]
mod owners {
    use std::path::Path;

    pub(super) fn distrust(_: &Path) -> Option<String> {
        None
    }

    pub(super) fn shared(_: &Path) -> Option<String> {
        None
    }

    pub(super) fn exposed(_: &Path) -> Option<String> {
        None
    }
}
