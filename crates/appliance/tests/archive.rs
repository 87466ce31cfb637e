//! Archives that tar makes, and archives that nobody should.

use appliance::{Archive, Corrupt, NewMember, end_bytes, header, padded_bytes};
use block::{ErrorKind, Memory, ReadAt};
use extent::Host;
use testkit::{run, scratch};

fn read(bytes: Vec<u8>) -> Result<Archive, block::Error> {
    Archive::read(&Memory::named("a.ova", bytes))
}

fn member(name: &str, contents: &[u8]) -> Vec<u8> {
    let member = NewMember { name: name.into(), len_bytes: contents.len() as u64 };
    let mut all = header(&member, 0);
    all.extend_from_slice(contents);
    all.resize(usize::try_from(padded_bytes(all.len() as u64)).expect("small"), 0);
    all
}

/// With another value in a field, and the checksum of that.
fn changed(mut header: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    header[at..at + bytes.len()].copy_from_slice(bytes);
    header[148..156].fill(b' ');
    let sum: u64 = header[..512].iter().map(|byte| u64::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[test]
fn archives_of_every_kind_of_tar_are_read() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    let long = format!("{}.vmdk", "long".repeat(40));
    let folder = "f".repeat(90);
    std::fs::create_dir(at(&folder)).unwrap();
    std::fs::write(at("vm.ovf"), b"descriptor").unwrap();
    std::fs::write(at(&long), b"contents").unwrap();
    std::fs::write(at(&folder).join("in it"), vec![7; 513]).unwrap();
    for format in ["ustar", "gnu", "posix", "v7"] {
        let archive = at("vm.ova");
        let (archive_arg, dir_arg) = (archive.to_str().unwrap(), dir.path().to_str().unwrap());
        // Neither has room for such a name.
        let second = if ["ustar", "v7"].contains(&format) { "vm.ovf" } else { &long };
        let inner = format!("{folder}/in it");
        let mut args = vec!["-cf", archive_arg, "--format", format, "-C", dir_arg, "./vm.ovf", &inner];
        if second != "vm.ovf" {
            args.push(second);
        }
        run("tar", &args);
        let file = Memory::new(std::fs::read(&archive).unwrap());
        let found = Archive::read(&file).unwrap_or_else(|error| panic!("{format}: {error}"));
        assert_eq!(found.descriptor().unwrap().name, "vm.ovf");
        let contents = |name: &str| {
            let span = found.member(name).unwrap_or_else(|| panic!("{format}: {name}")).span;
            let mut bytes = vec![0; span.len_bytes().try_into().unwrap()];
            ReadAt::<Host>::read_at(&file, span.start(), &mut bytes).unwrap();
            bytes
        };
        assert_eq!(contents("./vm.ovf"), b"descriptor");
        assert_eq!(contents(&inner), [7; 513]);
        if second != "vm.ovf" {
            assert_eq!(contents(second), b"contents");
        }
    }
}

#[test]
fn large_sizes_are_binary() {
    for len_bytes in [0o777_7777_7777, 8 << 30, u64::MAX] {
        let header = header(&NewMember { name: "a".into(), len_bytes }, 0);
        let error = read(header).unwrap_err();
        let Some(Corrupt::MemberPastEnd { len_bytes: found, .. }) = error.cause() else { panic!("{error}") };
        assert_eq!(*found, len_bytes);
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in ["../a", "/a", "a/../../b", "a//b", "a/./b", "..", ".", "a\x1b[2Jb", "a\nb"] {
        let error = read(member(name, b"x")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
        assert!(matches!(error.cause(), Some(Corrupt::MemberName { .. })), "{name}: {error}");
        assert!(!error.to_string().contains('\x1b'), "{error}");
    }
    // A name in an extended header is held to the same.
    let record = b"18 path=../escape\n";
    let extended = changed(member("x", record), 156, b"x");
    let error = read([extended, member("a", b"x")].concat()).unwrap_err();
    assert!(matches!(error.cause(), Some(Corrupt::MemberName { .. })), "{error}");
}

#[test]
fn links_devices_and_holes_are_refused() {
    for (kind, expected) in [
        (b"1", ErrorKind::Refused),
        (b"2", ErrorKind::Refused),
        (b"3", ErrorKind::Refused),
        (b"6", ErrorKind::Refused),
        (b"S", ErrorKind::Unsupported),
        (b"V", ErrorKind::Unsupported),
    ] {
        let error = read(changed(member("a", b""), 156, kind)).unwrap_err();
        assert_eq!(error.kind(), expected, "{error}");
    }
}

#[test]
fn what_contradicts_itself_is_corrupt() {
    let good = member("a", b"x");
    let cases = [
        ("checksum", {
            let mut bytes = good.clone();
            bytes[0] = b'b';
            bytes
        }),
        ("size", changed(good.clone(), 124, b"99999999999")),
        ("more than is left", changed(good.clone(), 124, b"00000002000")),
        ("past the end", good[..100].to_vec()),
        ("called 'a'", [good.clone(), member("./a", b"y")].concat()),
        ("extended header", changed(member("x", b"5 no record"), 156, b"x")),
        ("extended header", changed(member("x", b"99 path=x\n"), 156, b"x")),
        ("extended header", changed(member("x", b"1 \n"), 156, b"x")),
        ("extended header", changed(member("x", &[b'1'; 70_000]), 156, b"x")),
        ("more than 1024 members", (0..2000).flat_map(|index| member(&index.to_string(), b"")).collect()),
    ];
    for (why, bytes) in cases {
        let error = read(bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains(why), "{why}: {error}");
    }
    assert!(read(good.clone()).unwrap().descriptor().unwrap_err().to_string().contains("no .ovf"));
    let two = [member("a.ovf", b""), member("b.OVF", b"")].concat();
    assert!(read(two).unwrap().descriptor().unwrap_err().to_string().contains("several"));
}

#[test]
fn tar_reads_what_is_written() {
    let dir = scratch();
    let path = dir.path().join("new.ova");
    let mut bytes = [member("vm.ovf", b"descriptor"), member("vm-disk1.vmdk", &[3; 5000])].concat();
    bytes.resize(end_bytes(bytes.len() as u64).try_into().unwrap(), 0);
    std::fs::write(&path, &bytes).unwrap();
    let listed = run("tar", &["-tvf", path.to_str().unwrap()]);
    let sizes: Vec<_> = listed.lines().map(|line| line.split_whitespace().nth(2).unwrap()).collect();
    assert_eq!(sizes, ["10", "5000"], "{listed}");
    assert_eq!(bytes.len() % 10240, 0);
    // Every cut, and every changed byte of the first header, is told or harmless.
    for len in 0..bytes.len().min(3000) {
        let _ = read(bytes[..len].to_vec());
    }
    for at in 0..512 {
        for bit in 0..8 {
            let mut broken = bytes.clone();
            broken[at] ^= 1 << bit;
            let _ = read(broken);
        }
    }
}
