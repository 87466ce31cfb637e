//! What stands below the help of each command. No line is wider than 80 columns.

pub(super) const ALL: &str = "\
Examples:
  leandisk info disk.vhdx                           what is on this disk?
  leandisk analyze disk.vhdx                        is anything worth doing?
  leandisk copy disk.vhdx disk.qcow2 --verify       copy what the guest uses

'leandisk COMMAND --help' shows the options and examples of a command.";

pub(super) const INFO: &str = "\
Examples:
  leandisk info disk.vhdx
  leandisk info -f raw /dev/vg/guest
  leandisk info disk.qcow2 --json
  leandisk info qmp:/run/vm.sock                    the disks of a running guest";

pub(super) const ANALYZE: &str = "\
Examples:
  leandisk analyze disk.vhdx                        a verdict in a few lines
  leandisk analyze disk.vhdx --full                 everything that was found
  leandisk analyze disk.vhdx --html report.html     the same as a page
  leandisk analyze /var/lib/images --recursive      a table of all disks in a folder";

pub(super) const MAP: &str = "\
Examples:
  leandisk map disk.vhdx -o disk.svg                a picture
  leandisk map disk.vhdx -o disk.html               a page to zoom and search
  leandisk map -f raw /dev/vg/guest -o guest.svg --force";

pub(super) const LS: &str = "\
Examples:
  leandisk ls disk.vhdx /Users                      the only volume with files
  leandisk ls disk.qcow2 2:/etc                     volume 2, as info has it
  leandisk ls disk.raw vg/root:/ --recursive --json all of a logical volume";

pub(super) const CAT: &str = "\
Examples:
  leandisk cat disk.qcow2 2:/etc/fstab
  leandisk cat disk.vhdx /Users/me/file.doc:Zone.Identifier";

pub(super) const EXTRACT: &str = "\
Examples:
  leandisk extract disk.vhdx /Users/me --into restored
  leandisk extract disk.qcow2 2:/etc 3:/home --tar files.tar
  leandisk extract disk.raw / --tar - | tar -tv

Files get their paths on the volume: /Users/me becomes restored/Users/me. Other
streams of NTFS become files beside theirs, called NAME:STREAM.";

pub(super) const COPY: &str = "\
Examples:
  leandisk copy disk.vhdx disk.qcow2 --dry-run      how much would be read?
  leandisk copy disk.vhdx disk.qcow2 --verify       copy, then compare
  leandisk copy disk.vhdx /dev/vg/guest --force     onto a block device
  leandisk copy disk.vhdx disk.vmdk -o subformat=streamOptimized
  leandisk copy a.raw b.raw --reflink always        share storage (XFS, Btrfs)
  leandisk copy 'qmp:/run/vm.sock?disk=virtio0' vm.qcow2
                                                    a running QEMU guest's disk
  leandisk copy /run/disk.sock disk.qcow2           a disk that leandisk serves, as
                                                    it is at one moment";

pub(super) const BACKUP: &str = "\
Examples:
  leandisk backup disk.vhdx --repo /backup --password-file key --init
  leandisk backup root.qcow2 data.qcow2 --repo /backup --password-file key
  leandisk backup web=/dev/vg/web --repo /backup --password-file key --verify
  leandisk backup root.qcow2 --bitmap daily --repo /backup --password-file key
  leandisk backup qmp:/run/vm.sock --bitmap daily --repo /backup \\
      --password-file key                           a running guest's disks
  leandisk backup disk.vhdx --repo /backup --password-file key --keep-daily 7 --keep-weekly 5
  leandisk backup disk.vhdx --repo sftp:backup@nas:/srv/vm --password-file key
  leandisk backup disk.vhdx --repo rest:https://nas:8000/vm --password-file key

Any restic restores it: restic -r /backup dump latest disk.vhdx.raw > disk.raw";

pub(super) const SNAPSHOTS: &str = "\
Examples:
  leandisk snapshots --repo /backup --password-file key
  leandisk snapshots --repo /backup --password-file key --json
  leandisk snapshots --repo local:/backup --password-command ./print-key

RESTIC_REPOSITORY and RESTIC_PASSWORD_FILE stand in for the options.";

pub(super) const RESTORE: &str = "\
Examples:
  leandisk restore latest disk.vhdx --repo /backup --password-file key
  leandisk restore 1a2b3c4d:data.qcow2 data.raw --repo /backup \\
      --password-file key --verify
  leandisk restore latest disk.vhdx --repo /backup --password-file key \\
      --in-place                                    write only what differs";

pub(super) const CHECK: &str = "\
Examples:
  leandisk check latest --repo /backup --password-file key
  leandisk check latest --repo /backup --password-file key --json
  leandisk check 1a2b3c4d:data.qcow2 --repo /backup --password-file key
  leandisk check latest --repo /backup --password-file key --boot \\
      --boot-expect 'vm7 login:' --boot-screenshot vm7.png";

pub(super) const CREATE: &str = "\
Examples:
  leandisk create disk.qcow2 40G                    grows as it is written
  leandisk create disk.raw 1.5T --provision lazy    space reserved now
  leandisk create disk.vhdx 40G -o block_size=32M";

pub(super) const COMPACT: &str = "\
Examples:
  leandisk compact disk.vhdx --dry-run              how much can be given back?
  leandisk compact disk.vhdx
  leandisk compact disk.vhdx --defrag --verify      also empty blocks that hold
                                                    little; compare all files";

pub(super) const DEFRAG: &str = "\
Examples:
  leandisk defrag disk.vhdx --dry-run               what would move?
  leandisk defrag disk.vhdx --verify                compare all files afterwards
  leandisk defrag disk.vhdx --goal free --volume 2

After a power cut or a kill, run 'leandisk recover' before anything else.";

pub(super) const RECOVER: &str = "\
Examples:
  leandisk recover disk.vhdx
  leandisk recover disk.vhdx --json
  leandisk recover disk.vhdx --journal /mnt/fast/disk.journal
  leandisk recover qmp:/run/vm.sock                 a killed copy's leftovers in QEMU

It is safe to run on a disk that needs no recovery: nothing is changed then.";

pub(super) const SERVE: &str = "\
Examples:
  leandisk serve disk.qcow2 --socket /run/disk.sock
  leandisk serve disk.vmdk --socket /run/disk.sock --read-only
  leandisk serve a.qcow2 b.vhdx --socket /run/both.sock
  leandisk serve disk.qcow2 --listen 10.0.0.1:10809 \\
      --tls-cert cert.pem --tls-key key.pem --tls-ca ca.pem";

pub(super) const STATS: &str = "\
Examples:
  leandisk stats /run/disk.sock
  leandisk stats /run/disk.sock --json > before.json
  leandisk stats /run/both.sock --export b.vhdx
  leandisk stats /run/disk.sock --watch 5           a line every five seconds
  leandisk stats before.json after.json --html both.html";

pub(super) const REPORT: &str = "\
Examples:
  leandisk report --before before.json --after after.json -o gain.html
  leandisk report --before old.json --after new.json \\
      --before old.jsonl --after new.jsonl -o gain.html
                                                    also draws the worst file
  leandisk report --before defrag.json --after defrag.json --json
  leandisk report --print-assumptions > roi.toml    prices, to be changed
  leandisk report --before a.json --after b.json --roi roi.toml -o gain.html";

pub(super) const GUARD: &str = "\
Examples:
  leandisk guard
  leandisk guard /var/lib/libvirt/images --idle 10
  leandisk guard /srv --dry-run --state /tmp/guard
  leandisk guard status --json
  leandisk guard report --html guard.html

It takes root.";

pub(super) const COORDINATE: &str = "\
Examples:
  leandisk coordinate
  leandisk coordinate --listen-dir /run/storage
  leandisk coordinate -v                            log who may work when

A guest is given a port to it by QEMU's options, where SOCKET is guests.sock in
that folder:
  -device virtio-serial
  -chardev socket,id=guard,path=SOCKET,reconnect=2
  -device virtserialport,chardev=guard,name=org.leandisk.guard.0";

pub(super) const GUARD_STATUS: &str = "\
Examples:
  leandisk guard status
  leandisk guard status --json
  leandisk guard status --state /tmp/guard --json";

pub(super) const GUARD_REPORT: &str = "\
Examples:
  leandisk guard report
  leandisk guard report --html guard.html
  leandisk guard report --days 90 --json
  leandisk guard report --state /tmp/guard --html guard.html --force";

pub(super) const AGE: &str = "\
Examples:
  leandisk bench age aged.raw --filesystem ntfs --size 4G --fill 80
  leandisk bench age aged.raw --pieces 1.5 --months 60
                                                    ends once files have 1.5
                                                    pieces on average
  leandisk bench age /vm --size 2G --seed 7         a new folder in /vm

The same seed and size give the same operations, and on the same kernel the same
places, as long as nobody calls sync meanwhile.";

pub(super) const FIRST_WRITE: &str = "\
Examples:
  leandisk bench first-write --dir /vm --size 4G
  leandisk bench first-write --formats qcow2,vhdx --iterations 3
  leandisk bench first-write --provision thin --html first-write.html";

pub(super) const FRAGMENTATION: &str = "\
Examples:
  leandisk bench fragmentation --dir /vm
  leandisk bench fragmentation --files 8 --order random --json
  leandisk bench fragmentation --host-filesystem xfs --aged";

pub(super) const WORKLOADS: &str = "\
Examples:
  leandisk bench workloads --dir /vm
  leandisk bench workloads --dir /vm --state nested --size 10% --runs 5
  leandisk bench workloads --activities scan,backup --remedy none,defrag --json
  leandisk bench workloads --dir /vm --html workloads.html";

pub(super) const COMPLETIONS: &str = "\
Examples:
  leandisk completions bash > /etc/bash_completion.d/leandisk
  leandisk completions zsh > /usr/local/share/zsh/site-functions/_leandisk
  leandisk completions fish > ~/.config/fish/completions/leandisk.fish

The packages of Leandisk bring these files.";
