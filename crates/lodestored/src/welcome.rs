//! What `--dev` says when it serves: lines that work when they are pasted.

use crate::notify::Bound;

/// The text.
pub(crate) fn text(bound: &Bound, directory: &std::path::Path) -> String {
    let http = bound.http;
    let address = match bound.grpc.first() {
        Some(grpc) if grpc.port() != 7070 => format!(" --address http://{grpc}"),
        _ => String::new(),
    };
    let grpc: Vec<_> = bound.grpc.iter().map(ToString::to_string).collect();
    let lodectl = format!("cargo run --release -q -p lodectl --{address}");
    format!(
        "\n\
         lodestored serves pool \"dev\" on an emulated NVMe drive in {directory}\n  \
           gRPC  {grpc}\n  \
           HTTP  http://{http}/metrics\n\
         \n\
         Try, in another terminal:\n  \
           {lodectl} pool status\n  \
           {lodectl} volume create first --size 1GiB\n  \
           {lodectl} bench --volume first --rw randwrite --depth 32 --runtime 5s\n  \
           {lodectl} volume list\n  \
           curl -s http://{http}/metrics | grep completions\n\
         \n\
         Ctrl-C stops it; what is durable is there again at the next start.\n\n",
        directory = directory.display(),
        grpc = grpc.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_named_only_when_it_is_not_the_default() {
        let bound = |port: u16| Bound {
            grpc: vec![([127, 0, 0, 1], port).into()],
            http: ([127, 0, 0, 1], 9464).into(),
        };
        let directory = std::path::Path::new("lodestore-dev");
        assert!(!text(&bound(7070), directory).contains("--address"));
        assert!(text(&bound(7071), directory).contains("--address http://127.0.0.1:7071 pool"));
    }
}
