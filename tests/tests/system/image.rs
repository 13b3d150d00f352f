//! Images through the command line: in, out, and one that shrinks on the way.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use lode_api::v1::GetVolumeRequest;
use lode_tests::{Daemon, Site, program, until};
use lode_units::{Random, SeededRandom};

fn lodectl(daemon: &Daemon) -> Command {
    let mut command = Command::new(program("lodectl"));
    command.arg("--address").arg(daemon.url());
    command
}

fn run(command: &mut Command) -> Output {
    command.output().expect("lodectl can be started")
}

fn said(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A sparse image: 4 MiB of data at its start and near its end.
fn make_image(path: &Path, size: u64) {
    let file = File::create(path).expect("the folder takes a file");
    file.set_len(size).expect("the file can be sparse");
    let mut random = SeededRandom::new(11);
    for start in [0, size - (4 << 20)] {
        let bytes: Vec<u8> = (0..(4 << 20) / 8)
            .flat_map(|_| random.next_u64().to_le_bytes())
            .collect();
        file.write_all_at(&bytes, start).expect("within the file");
    }
}

fn read(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .expect("the file can be read");
    bytes
}

#[test]
fn an_image_comes_back_byte_by_byte_and_its_holes_stay_holes() {
    let site = Site::new();
    let daemon = site.start();
    let image = site.folder().join("in.img");
    let export = site.folder().join("out.img");
    make_image(&image, 64 << 20);
    let imported = run(lodectl(&daemon)
        .args(["volume", "import", "--create"])
        .args([image.as_path(), Path::new("image")]));
    assert!(imported.status.success(), "{}", said(&imported));
    let exported = run(lodectl(&daemon)
        .args(["volume", "export"])
        .args([Path::new("image"), export.as_path()]));
    assert!(exported.status.success(), "{}", said(&exported));
    assert!(
        read(&image) == read(&export),
        "the export differs from the image"
    );
    let taken = std::fs::metadata(&export)
        .expect("the export is there")
        .blocks()
        * 512;
    assert!(taken < 16 << 20, "a sparse image takes {taken} bytes");
}

#[tokio::test]
async fn an_image_that_shrinks_while_it_is_imported_is_an_error_and_leaves_no_volume() {
    let site = Site::new();
    let daemon = site.start();
    let image = site.folder().join("shrinking.img");
    make_image(&image, 192 << 20);
    // The image is a fully written one, so that the import takes a while.
    let file = OpenOptions::new()
        .write(true)
        .open(&image)
        .expect("the image is there");
    let chunk = vec![1; 1 << 20];
    for offset in 0..192_u64 {
        file.write_all_at(&chunk, offset << 20)
            .expect("within the file");
    }
    let import = lodectl(&daemon)
        .args(["volume", "import", "--create"])
        .args([image.as_path(), Path::new("shrinking")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("lodectl can be started");
    let mut volumes = daemon.volumes().await;
    let request = GetVolumeRequest {
        name: "shrinking".to_owned(),
        ..GetVolumeRequest::default()
    };
    // The volume is there: the import has begun.
    let limit = tokio::time::timeout(Duration::from_secs(30), async {
        while volumes.get_volume(request.clone()).await.is_err() {}
    });
    limit.await.expect("the import begins");
    file.set_len(4096).expect("the file can be cut");
    let output = import.wait_with_output().expect("lodectl ends");
    assert!(!output.status.success(), "{}", said(&output));
    let message = said(&output).to_lowercase();
    assert!(
        message.contains("shrinking.img"),
        "the error names the file: {message}"
    );
    assert!(
        volumes.get_volume(request).await.is_err(),
        "no half volume is left"
    );
}

#[test]
fn a_daemon_that_dies_during_an_import_makes_the_import_fail_not_hang() {
    let site = Site::new();
    let daemon = site.start();
    let mut import = lodectl(&daemon)
        .args(["volume", "import", "--create", "/dev/zero", "endless"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("lodectl can be started");
    daemon.kill();
    let ended = until(Duration::from_secs(60), || import.try_wait().transpose());
    if ended.is_err() {
        import.kill().expect("a running child can be killed");
    }
    let status = ended
        .expect("the import ends")
        .expect("a child can be waited for");
    assert!(!status.success());
}

#[test]
fn a_closed_pipe_ends_an_export_quietly() {
    let site = Site::new();
    let daemon = site.start();
    let created = run(lodectl(&daemon).args(["volume", "create", "piped", "--size", "64MiB"]));
    assert!(created.status.success(), "{}", said(&created));
    let mut export = lodectl(&daemon)
        .args(["volume", "export", "piped", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("lodectl can be started");
    drop(export.stdout.take());
    let output = export.wait_with_output().expect("lodectl ends");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains("panicked"), "{text}");
}
