//! Kill after kill under load: nothing that was acknowledged as durable is lost, and the loop
//! would notice if it were.

use lode_tests::power_loss::{Plan, run};

#[tokio::test]
async fn a_hundred_kills_lose_no_acknowledged_flushed_write() {
    let report = run(Plan {
        rounds: 100,
        seed: 0x10de,
        device_options: "size=256MiB&create&cache=modelled",
    })
    .await;
    assert!(report.losses.is_empty(), "{report:#?}");
    assert_eq!(report.rounds, 100);
    // The loop is worth something only if there was much to lose.
    assert!(report.durable_blocks > 100, "{report:#?}");
    assert!(report.in_flight_at_kill > 100, "{report:#?}");
    assert!(report.churned_volumes > 10, "{report:#?}");
    assert!(report.start_kills > 0, "{report:#?}");
}

#[tokio::test]
async fn the_same_loop_over_a_device_that_lies_about_flushes_loses_some() {
    let report = run(Plan {
        rounds: 100,
        seed: 0x10de,
        device_options: "size=256MiB&create&cache=modelled&flush=lie",
    })
    .await;
    assert!(!report.losses.is_empty(), "{report:#?}");
}
