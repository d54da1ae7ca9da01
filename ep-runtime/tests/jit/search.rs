//! Where NVRTC is looked for, in folders made up for the purpose.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use ep_runtime::jit::{Candidate, Nvrtc, Origin, Search, Version};

use crate::support::Folder;

/// Puts empty files in the place of an NVRTC of `version` into `folder`.
fn plant(folder: &Path, version: &str) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let major = version.split('.').next().unwrap();
    let library = folder.join(format!("libnvrtc.so.{major}"));
    fs::write(&library, "").unwrap();
    fs::write(folder.join(format!("libnvrtc-builtins.so.{version}")), "").unwrap();
    library
}

fn libraries(search: &Search) -> Vec<PathBuf> {
    search.candidates().map(|candidate| candidate.library).collect()
}

fn version(major: u32, minor: u32) -> Option<Version> {
    Some(Version { major, minor })
}

#[test]
fn the_places_come_in_their_order() {
    let folder = Folder::new("order");
    let project = plant(&folder.join("work/.cuda/nvrtc-13.5/nvidia/cu13/lib"), "13.5");
    let older = plant(&folder.join("work/.cuda/nvrtc-12.9/nvidia/cuda_nvrtc/lib"), "12.9");
    let prefix = folder.join("python");
    let wheel = plant(&prefix.join("lib/python3.11/site-packages/nvidia/cu13/lib"), "13.0");
    fs::create_dir(prefix.join("bin")).unwrap();
    fs::write(prefix.join("bin/python3.11"), "an interpreter").unwrap();
    symlink("python3.11", prefix.join("bin/python3")).unwrap();
    let system = plant(&folder.join("cuda/lib64"), "12.8");
    let start = folder.join("work/deep/below");
    fs::create_dir_all(&start).unwrap();

    let mut search = Search {
        start: Some(start),
        path: vec![folder.join("empty"), prefix.join("bin")],
        system: vec![folder.join("cuda/lib64"), folder.join("missing")],
        ..Search::default()
    };
    assert_eq!(libraries(&search), [project, older.clone(), wheel, system]);
    let origins: Vec<Origin> = search.candidates().map(|found| found.origin).collect();
    assert_eq!(origins, [Origin::Project, Origin::Project, Origin::Python, Origin::System]);

    search.variable = Some(older.clone());
    let named: Vec<_> = search.candidates().collect();
    let builtins = older.with_file_name("libnvrtc-builtins.so.12.9");
    let expected = Candidate {
        library: older,
        builtins: Some(builtins),
        version: version(12, 9),
        origin: Origin::Variable,
    };
    assert_eq!(named, [expected]);
}

#[test]
fn the_variable_names_a_file_a_folder_or_a_wheel() {
    let folder = Folder::new("variable");
    let library = plant(&folder.join("nvidia/cu13/lib"), "13.5");
    for named in [library.clone(), folder.join("nvidia/cu13/lib"), folder.path().to_owned()] {
        let search = Search { variable: Some(named), ..Search::default() };
        assert_eq!(libraries(&search), [library.as_path()]);
    }
    let search = Search { variable: Some(folder.join("nowhere")), ..Search::default() };
    assert_eq!(libraries(&search), [""; 0].map(PathBuf::from));
}

#[test]
fn names_tell_versions_and_companions() {
    let folder = Folder::new("names");
    let lib = folder.join("lib");
    fs::create_dir(&lib).unwrap();
    for name in [
        "libnvrtc.so.12.4.127",
        "libnvrtc-builtins.so.12.4",
        "libnvrtc-builtins.so.12.9",
        "libnvrtc.so.13",
        "libnvrtc-builtins.so.13.0",
        "libnvrtc-builtins.so.13.5",
        "libnvrtc-builtins.alt.so.13.5",
        "libnvrtc.alt.so.13",
        "libnvrtc_static.a",
    ] {
        fs::write(lib.join(name), "").unwrap();
    }
    symlink("libnvrtc.so.12.4.127", lib.join("libnvrtc.so.12")).unwrap();
    symlink("libnvrtc.so.12", lib.join("libnvrtc.so")).unwrap();
    let search = Search { system: vec![lib.clone()], ..Search::default() };
    let found: Vec<_> =
        search.candidates().map(|found| (found.version, found.builtins.unwrap())).collect();
    let expected = [
        (version(13, 5), lib.join("libnvrtc-builtins.so.13.5")),
        (version(12, 4), lib.join("libnvrtc-builtins.so.12.4")),
    ];
    assert_eq!(found, expected, "each library once, whatever its links");
}

#[test]
fn a_folder_that_anyone_could_have_planted_does_not_count() {
    let folder = Folder::new("planted");
    let shared = folder.join("shared");
    plant(&shared.join(".cuda/nvidia/cu13/lib"), "13.5");
    let search = Search { start: Some(shared.join("mine")), ..Search::default() };
    assert_eq!(search.candidates().count(), 1);
    for path in [shared.clone(), shared.join(".cuda")] {
        fs::set_permissions(&path, Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(search.candidates().count(), 0, "{} is writable", path.display());
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }
}

/// The user that files of somebody else belong to.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    // SAFETY: the call takes nothing, touches no memory and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Every folder above counts, and the libraries themselves: one that another user owns or can write is
/// passed over, and named.
#[test]
fn what_another_user_could_have_planted_is_named() {
    let folder = Folder::new("foreign");
    let root = folder.path().canonicalize().unwrap();
    let library = plant(&root.join("a/.cuda/nvidia/cu13/lib"), "13.5");
    let builtins = library.with_file_name("libnvrtc-builtins.so.13.5");
    let search = Search { start: Some(root.join("a/b")), ..Search::default() };
    assert_eq!((search.candidates().count(), search.distrusted().len()), (1, 0));
    let refused = |place: &Path, why: &str| {
        assert_eq!(search.candidates().count(), 0, "{} {why}", place.display());
        let cuda = root.join("a/.cuda");
        let said = format!("{} is not used: {} {why}", cuda.display(), place.display());
        assert_eq!(search.distrusted(), [said.as_str()]);
        let missing = Nvrtc::search(&search).unwrap_err().to_string();
        assert!(missing.ends_with(&said), "{missing}");
    };
    for place in [&root, &root.join("a"), &root.join("a/.cuda"), &library, &builtins] {
        let before = fs::metadata(place).unwrap().permissions();
        fs::set_permissions(place, Permissions::from_mode(0o777)).unwrap();
        refused(place, "can be written by everybody (mode 0777)");
        if is_root() {
            chown(place, Some(NOBODY), None).unwrap();
            fs::set_permissions(place, before.clone()).unwrap();
            refused(place, "belongs to user 65534, and this process to user 0");
            chown(place, Some(0), Some(50)).unwrap();
            fs::set_permissions(place, Permissions::from_mode(0o775)).unwrap();
            refused(place, "can be written by group 50 (mode 0775)");
        }
        fs::set_permissions(place, before).unwrap();
    }
    assert_eq!(search.candidates().count(), 1);
    // A link to a place that another user controls is that place.
    let elsewhere = root.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::rename(root.join("a/.cuda"), elsewhere.join(".cuda")).unwrap();
    symlink(elsewhere.join(".cuda"), root.join("a/.cuda")).unwrap();
    assert_eq!(search.candidates().count(), 1);
    fs::set_permissions(&elsewhere, Permissions::from_mode(0o777)).unwrap();
    refused(&elsewhere, "can be written by everybody (mode 0777)");
}

#[test]
fn a_virtual_environment_hides_the_packages_below_it_unless_it_says_otherwise() {
    let folder = Folder::new("venv");
    let base = folder.join("base");
    let below = plant(&base.join("lib/python3.12/dist-packages/nvidia/cu13/lib"), "13.0");
    fs::create_dir(base.join("bin")).unwrap();
    fs::write(base.join("bin/python3.12"), "an interpreter").unwrap();
    let venv = folder.join("venv");
    let inside = plant(&venv.join("lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib"), "12.9");
    fs::create_dir(venv.join("bin")).unwrap();
    symlink(base.join("bin/python3.12"), venv.join("bin/python3")).unwrap();
    let search = Search { path: vec![venv.join("bin")], ..Search::default() };

    fs::write(venv.join("pyvenv.cfg"), "include-system-site-packages = false\n").unwrap();
    assert_eq!(libraries(&search), [inside.as_path()]);
    fs::write(venv.join("pyvenv.cfg"), "include-system-site-packages = true\n").unwrap();
    assert_eq!(libraries(&search), [inside, below]);
}

#[test]
fn a_shim_is_asked_for_its_folders() {
    let folder = Folder::new("shim");
    let library = plant(&folder.join("packages/nvidia/cu13/lib"), "13.5");
    let shim = folder.join("python3");
    let script = format!("#!/bin/sh\necho {}\n", folder.join("packages").display());
    fs::write(&shim, script).unwrap();
    fs::set_permissions(&shim, Permissions::from_mode(0o755)).unwrap();
    let search = Search { path: vec![folder.path().to_owned()], ..Search::default() };
    assert_eq!(libraries(&search), [library]);
    fs::write(&shim, "#!/bin/sh\nexit 1\n").unwrap();
    assert_eq!(search.candidates().count(), 0);
}
