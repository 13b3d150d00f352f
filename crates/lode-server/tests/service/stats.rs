//! StatsService.

use lode_api::v1::WatchStatsRequest;

use crate::fixture::{Fixture, run};

#[test]
fn a_watcher_is_told_what_was_done_in_each_interval() {
    run(async {
        let fixture = Fixture::new().await;
        let request = WatchStatsRequest { interval_ms: 100 };
        let mut watch = fixture.stats().watch_stats(request).await;
        let stream = watch.as_mut().expect("it is served").get_mut();
        fixture.figures.completions_inline.add(5);
        fixture.figures.doorbells.add(2);
        let first = stream.message().await.expect("figures").expect("no end");
        let core = &first.cores[0];
        assert_eq!((core.core, core.completions, core.doorbells), (0, 5, 2));
        let time = core.busy_ns + core.idle_ns + core.asleep_ns;
        assert!(time > 0 && time >= first.interval_ns, "{core:?}");
        assert_eq!(first.routes.len(), 1);
        assert_eq!(
            (first.routes[0].route.as_str(), first.routes[0].count),
            ("inline", 5)
        );
        let second = stream.message().await.expect("figures").expect("no end");
        assert_eq!(second.cores[0].completions, 0, "nothing since");
        fixture.stop().await;
    });
}

#[test]
fn a_watcher_does_not_hold_up_the_servers_stop() {
    run(async {
        let fixture = Fixture::new().await;
        let request = WatchStatsRequest {
            interval_ms: u32::MAX,
        };
        let mut watch = fixture.stats().watch_stats(request).await;
        let stream = watch.as_mut().expect("it is served").get_mut();
        fixture.server.stop().await;
        assert!(matches!(stream.message().await, Ok(None)), "it ends");
        fixture.stop().await;
    });
}
