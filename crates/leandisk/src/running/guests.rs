//! Disks of running guests among those that a command names: those of one guest are read as they are at one moment.

use std::path::{Path, PathBuf};

use block::{Error, Result};
use extent::HostOffset;
use vm::Address;

use super::{AtMoment, BitmapTold, Meant, Moment, Options};
use crate::Observer;

/// The moments of all guests that were named.
#[derive(Default)]
pub struct Guests {
    moments: Vec<Moment>,
}

/// A disk that is read, and where.
#[derive(Clone, Debug)]
pub struct ReadDisk {
    /// Which of the names it comes from.
    pub named: usize,
    /// What it is called.
    pub disk: PathBuf,
    /// Where it is read; `None` for where it is.
    pub read_at: Option<PathBuf>,
    /// What its bitmap says, if that was asked and something else than its image keeps it.
    pub bitmap: Option<BitmapTold>,
}

impl ReadDisk {
    /// A disk that is read where it is.
    pub fn here(named: usize, disk: PathBuf) -> Self {
        Self { named, disk, read_at: None, bitmap: None }
    }
}

/// A guest, and the numbers of the names of its disks.
struct Guest {
    socket: PathBuf,
    named: Vec<usize>,
    meant: Vec<Meant>,
}

impl Guests {
    /// Has all disks of running guests exported that are among `names`. A name without a disk stands for all disks of that guest.
    pub fn begin(
        names: &[PathBuf],
        options: &Options,
        observer: &dyn Observer,
    ) -> Result<(Self, Vec<ReadDisk>)> {
        let mut guests = Self::default();
        let mut found = Vec::new();
        let by_guest = by_guest(names)?;
        if by_guest.len() > 1 && options.agent.is_some() {
            return Err(Error::invalid("one agent is named, and disks of several guests")
                .hint("give each guest a command of its own, or leave --agent out"));
        }
        if by_guest.len() > 1 {
            observer.note(&format!(
                "these are disks of {} guests: those of one guest are of one moment, and each guest has its own",
                by_guest.len()
            ));
        }
        for guest in by_guest {
            let moment = Moment::of_disks(&guest.socket, &guest.meant, options, observer)?;
            found.extend(moment.disks().iter().map(|disk| read_disk(disk, guest.named[disk.meant])));
            guests.moments.push(moment);
        }
        found.sort_by_key(|disk| disk.named);
        Ok((guests, found))
    }

    /// What was made by name, and is removed in the end.
    pub fn made(&self) -> impl Iterator<Item = &Path> {
        self.moments.iter().map(Moment::made)
    }

    /// Has the bitmap of the disk that is read there begin again at its moment, with the bits of the places `kept`.
    pub fn rotate(&mut self, read_at: &Path, kept: &[HostOffset]) -> Result<()> {
        let place = self.moments.iter_mut().find_map(|moment| {
            let number = moment.disks().iter().position(|disk| disk.source == read_at)?;
            Some((moment, number))
        });
        match place {
            Some((moment, number)) => moment.rotate(number, kept),
            None => Err(Error::invalid("is no disk of a guest that is read").path(read_at.display())),
        }
    }

    /// Removes what was made for them. The first that fails is told, and the guest that it is of.
    pub fn end(self) -> Result<()> {
        let end = |moment: Moment| {
            let disk = moment.disk().shown.clone();
            let hint = format!("something may be left in QEMU: leandisk recover '{disk}'");
            moment.end().map_err(|error| error.hint(hint))
        };
        // Each, whatever becomes of the others.
        let ended: Vec<Result<()>> = self.moments.into_iter().map(end).collect();
        ended.into_iter().collect()
    }
}

fn read_disk(disk: &AtMoment, named: usize) -> ReadDisk {
    ReadDisk {
        named,
        disk: disk.shown.clone().into(),
        read_at: Some(disk.source.clone()),
        bitmap: disk.bitmap.clone(),
    }
}

/// The guests among the names, in their order. One is known by its socket.
fn by_guest(names: &[PathBuf]) -> Result<Vec<Guest>> {
    let mut guests: Vec<Guest> = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let Some(address) = Address::of(name).transpose()? else { continue };
        let meant = address.disk.map_or(Meant::All, Meant::Named);
        let place = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        match guests.iter_mut().find(|guest| place(&guest.socket) == place(&address.socket)) {
            Some(guest) => {
                guest.named.push(number);
                guest.meant.push(meant);
            }
            None => guests.push(Guest { socket: address.socket, named: vec![number], meant: vec![meant] }),
        }
    }
    Ok(guests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_of_one_socket_are_of_one_guest() {
        let names = ["qmp:/a?disk=x", "disk.raw", "qmp:/b", "qmp:/a?disk=y"].map(PathBuf::from);
        let guests = by_guest(&names).unwrap();
        let told: Vec<_> = guests.iter().map(|guest| (guest.named.as_slice(), guest.meant.len())).collect();
        assert_eq!(told, [(&[0, 3][..], 2), (&[2], 1)]);
        assert_eq!(guests[0].meant[1], Meant::Named("y".into()));
        assert_eq!(guests[1].meant, [Meant::All]);
        assert!(by_guest(&["qmp:".into()]).is_err());
    }
}
