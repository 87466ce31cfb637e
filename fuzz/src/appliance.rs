//! Appliances: archives, and the texts that describe them.

use std::sync::Arc;

use appliance::{Archive, Gunzipped, GzipIndex, Manifest, TEXT_BYTES_MAX, Window, domain, ovf, vmx};
use block::{ErrorKind, HostFile, Memory, ReadAt, Result, read_vec};
use extent::{Host, HostOffset};

/// Reads the bytes as an OVA, and as each of the texts.
pub fn appliance(data: &[u8]) {
    if let Ok(text) = appliance::text(data.to_vec()) {
        told(ovf::read(&text).map(drop));
        told(vmx::read(&text).map(drop));
        told(domain::read(&text).map(drop));
        told(Manifest::parse(&text).map(drop));
        let _ = appliance::percent_decoded(&text);
    }
    told(archive(data));
    told(compressed(data));
}

/// What a compressed file is unpacked to by its index is the same from every place.
fn compressed(data: &[u8]) -> Result<()> {
    const UNPACKED_BYTES_MAX: u64 = 16 << 20;
    let file: Arc<dyn HostFile> = Arc::new(Memory::named("fuzzed.gz", data.to_vec()));
    let index = Arc::new(GzipIndex::make(&*file, UNPACKED_BYTES_MAX, &mut |_| Ok(()))?);
    let unpacked = || Gunzipped::new(file.clone(), index.clone());
    let len_bytes = unpacked().len_bytes();
    assert!(len_bytes <= UNPACKED_BYTES_MAX, "what it unpacks to is bounded");
    let whole = read_vec::<Host>(&unpacked(), HostOffset::ZERO, len_bytes, "all of it")?;
    let half = len_bytes / 2;
    let rest = read_vec::<Host>(&unpacked(), HostOffset::new(half), len_bytes - half, "half of it")?;
    assert_eq!(whole[whole.len() - rest.len()..], rest, "from every place it is the same");
    Ok(())
}

fn archive(data: &[u8]) -> Result<()> {
    let file: Arc<dyn HostFile> = Arc::new(Memory::named("fuzzed.ova", data.to_vec()));
    let archive = Archive::read(&*file)?;
    for member in archive.members() {
        assert!(member.span.end().get() <= file.len_bytes(), "a member lies within the archive");
        let leads_out = member.name.starts_with('/') || member.name.split('/').any(|part| part == "..");
        assert!(!leads_out, "a member's name stays within the archive");
    }
    let text = |span| {
        let window = Window::new(file.clone(), span, "member".into());
        let len_bytes = ReadAt::<Host>::len_bytes(&window).min(TEXT_BYTES_MAX);
        appliance::text(read_vec(&window, HostOffset::ZERO, len_bytes, "text")?)
    };
    ovf::read(&text(archive.descriptor()?.span)?)?;
    if let Some(manifest) = archive.manifest()? {
        let manifest = Manifest::parse(&text(manifest.span)?)?;
        for member in archive.members() {
            let _ = manifest.check(
                &member.name,
                &Window::new(file.clone(), member.span, "member".into()),
                &mut |_| Ok(()),
            );
        }
    }
    Ok(())
}

/// What is wrong is the input's fault.
fn told(result: Result<()>) {
    if let Err(error) = result {
        let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported, ErrorKind::Refused];
        assert!(kinds.contains(&error.kind()), "{error:?}");
    }
}
