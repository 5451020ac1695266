use std::time::Duration;

use baton_engine::{Event, GenerateOptions, Sampling};
use baton_models::testing::Successors;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::*;
use crate::testing::{ANSWER, CONTEXT, Home, options};

/// What a model answers to a line.
async fn answer(lease: &Lease) -> String {
    let (sender, mut events) = mpsc::unbounded_channel();
    let options = GenerateOptions { sampling: Sampling::greedy(), ..GenerateOptions::default() };
    let sink = move |event| match sender.send(event) {
        Ok(()) => std::ops::ControlFlow::Continue(()),
        Err(_) => std::ops::ControlFlow::Break(()),
    };
    lease.scheduler().unwrap().submit("Hi\n", &options, sink).unwrap();
    let mut text = String::new();
    while let Some(event) = events.recv().await {
        match event.unwrap() {
            Event::Text(more) => text += &more,
            Event::Done(_) => break,
            _ => {}
        }
    }
    text
}

fn names(models: &Models) -> Vec<String> {
    models.running().iter().map(|running| running.loaded.name.clone()).collect()
}

/// Waits until these models are in memory and no other.
async fn until(models: &Models, wanted: &[&str]) {
    let all = async {
        while names(models) != wanted {
            sleep(Duration::from_millis(2)).await;
        }
    };
    let found = timeout(Duration::from_secs(10), all).await;
    assert!(found.is_ok(), "{:?} instead of {wanted:?}", names(models));
}

#[tokio::test]
async fn a_model_is_loaded_when_it_is_asked_for_and_once() {
    let home = Home::new();
    let models = home.models().await;
    assert!(models.running().is_empty());
    let (one, two) = tokio::join!(models.lease("sky", None), models.lease("SKY:latest", None));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert!(std::ptr::eq(&*one, &*two));
    assert_eq!(answer(&one).await, ANSWER);
    assert_eq!(names(&models), ["sky"]);
    let running = models.running();
    assert_eq!((running[0].leases, running[0].loaded.context_length()), (2, CONTEXT));
    assert!(running[0].expires.is_some());
    // Another model beside it does not disturb it.
    let other = models.lease("endless", None).await.unwrap();
    assert_eq!(other.name, "endless");
    assert_eq!(answer(&two).await, ANSWER);
    assert_eq!(names(&models), ["endless", "sky"]);
}

#[tokio::test]
async fn what_is_not_here_is_not_answered_by_another() {
    let home = Home::new();
    let models = home.models().await;
    let _loaded = models.lease("sky", None).await.unwrap();
    let path = home.path("sky.gguf");
    for name in ["sky:1b", "skies", "smollm2", "", "/etc/passwd", path.to_str().unwrap(), "o/r"] {
        let error = models.lease(name, None).await.unwrap_err();
        assert_eq!(error.kind, Kind::NoModel, "{name}");
        assert!(error.message.contains("not found"), "{name}: {error}");
    }
    let message = models.lease("smollm2", None).await.unwrap_err().message;
    assert!(message.contains("pull"), "{message}");
    let message = models.lease("smolm2", None).await.unwrap_err().message;
    assert!(message.contains("did you mean smollm2"), "{message}");
    assert_eq!(models.facts("nothing").await.unwrap_err().kind, Kind::NoModel);
    assert_eq!(models.delete("sky").await.unwrap_err().kind, Kind::Invalid);
    assert!(path.exists());
}

#[tokio::test]
async fn a_damaged_file_is_an_error_for_everybody_who_waits() {
    let home = Home::new();
    let models = home.models().await;
    let path = home.path("sky.gguf");
    let length = std::fs::metadata(&path).unwrap().len();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(length / 2).unwrap();
    let (one, two) = tokio::join!(models.lease("sky", None), models.lease("sky", None));
    assert_eq!(one.unwrap_err(), two.unwrap_err());
    // And the next one asks anew.
    Successors::answering(ANSWER).write(&path);
    assert_eq!(answer(&models.lease("sky", None).await.unwrap()).await, ANSWER);
}

#[tokio::test]
async fn a_model_goes_when_its_time_has_come_but_not_while_it_is_used() {
    let home = Home::new();
    let models = home.models().await;
    let now = Some(KeepAlive::For(Duration::ZERO));
    let one = models.lease("sky", now).await.unwrap();
    let two = models.lease("sky", None).await.unwrap();
    drop(one);
    sleep(Duration::from_millis(30)).await;
    assert_eq!(answer(&two).await, ANSWER);
    drop(two);
    until(&models, &[]).await;

    let brief = Some(KeepAlive::For(Duration::from_millis(40)));
    drop(models.lease("sky", brief).await.unwrap());
    drop(models.lease("endless", Some(KeepAlive::Forever)).await.unwrap());
    until(&models, &["endless"]).await;
    assert!(models.running()[0].expires.is_none());
    assert!(models.unload("endless:latest").await);
    assert!(!models.unload("endless").await);
    until(&models, &[]).await;
}

#[tokio::test]
async fn an_idle_model_makes_room_and_a_used_one_is_waited_for() {
    let home = Home::new();
    let mut options = options();
    options.max_models = 1;
    options.patience = Duration::from_millis(400);
    let models = home.models_with(options).await;
    drop(models.lease("sky", None).await.unwrap());
    let endless = models.lease("endless", None).await.unwrap();
    until(&models, &["endless"]).await;

    let error = models.lease("sky", None).await.unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable);
    assert!(error.message.contains("no room for sky"), "{error}");
    let waits = models.clone();
    let waiting = tokio::spawn(async move { waits.lease("sky", None).await });
    sleep(Duration::from_millis(20)).await;
    assert_eq!(names(&models), ["endless"]);
    drop(endless);
    assert_eq!(answer(&waiting.await.unwrap().unwrap()).await, ANSWER);
    assert_eq!(names(&models), ["sky"]);
}

#[tokio::test]
async fn a_model_beyond_the_memory_is_refused_with_every_term() {
    let home = Home::new();
    let mut options = options();
    options.memory = Some(1 << 10);
    let models = home.models_with(options).await;
    let error = models.lease("sky", None).await.unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable);
    for term in ["weights", "KV cache", "scratch", "may use 1 MiB"] {
        assert!(error.message.contains(term), "{error}");
    }
    assert!(models.running().is_empty());
}

#[tokio::test]
async fn a_larger_context_is_loaded_when_it_is_wished_for() {
    let home = Home::new();
    let models = home.models().await;
    let small = models.lease("sky", None).await.unwrap();
    let wish = |context| Wish { context: Some(context), ..Wish::default() };
    let same = models.lease_with("sky", wish(10)).await.unwrap();
    assert!(std::ptr::eq(&*small, &*same));
    drop(same);
    let large = models.lease_with("sky", wish(2 * CONTEXT)).await.unwrap();
    assert_eq!(large.context_length(), 2 * CONTEXT);
    // Who had the other one keeps it.
    assert_eq!(answer(&small).await, ANSWER);
    assert_eq!(answer(&large).await, ANSWER);
    let next = models.lease("sky", None).await.unwrap();
    assert_eq!(next.context_length(), 2 * CONTEXT);
}

#[tokio::test]
async fn a_lease_may_outlive_everything_else() {
    let home = Home::new();
    let models = home.models().await;
    let lease = models.lease("sky", None).await.unwrap();
    drop(models);
    assert_eq!(answer(&lease).await, ANSWER);
}

#[tokio::test]
async fn a_model_is_pulled_listed_used_and_deleted() {
    let home = Home::new();
    let models = home.with_catalog().await;
    assert!(models.installed().await.unwrap().is_empty());
    let (progress, mut events) = mpsc::channel(64);
    let local = models.pull("tiny", progress).await.unwrap();
    assert_eq!(local.name, "tiny");
    let mut seen = Vec::new();
    while let Some(event) = events.recv().await {
        seen.push(event);
    }
    let size = local.size;
    assert!(seen.contains(&Pulling::Done { file: "tiny.gguf".into(), size }), "{seen:?}");

    let installed = models.installed().await.unwrap();
    assert_eq!((installed.len(), &*installed[0].name), (1, "tiny"));
    let facts = models.facts("tiny:latest").await.unwrap();
    assert!(Arc::ptr_eq(&facts, installed[0].facts.as_ref().unwrap()));
    assert_eq!(facts.digest, local.files[0].sha256.unwrap().to_string());
    let lease = models.lease("tiny", None).await.unwrap();
    assert_eq!(models.delete("tiny").await.unwrap(), size);
    assert!(models.running().is_empty());
    assert_eq!(models.lease("tiny", None).await.unwrap_err().kind, Kind::NoModel);
    // What was begun is finished.
    assert_eq!(answer(&lease).await, ANSWER);
    assert_eq!(models.delete("tiny").await.unwrap_err().kind, Kind::NoModel);
}

#[tokio::test]
async fn what_cannot_be_pulled_says_why() {
    let home = Home::new();
    let models = home.with_catalog().await;
    for (name, kind) in [
        ("nothing", Kind::NoModel),
        ("absent", Kind::NotFound),
        ("/etc/passwd", Kind::Invalid),
        ("", Kind::Invalid),
        ("http://127.0.0.1:1/x.gguf", Kind::Invalid),
    ] {
        let (progress, _events) = mpsc::channel(64);
        let error = models.pull(name, progress).await.unwrap_err();
        assert_eq!(error.kind, kind, "{name}: {error}");
    }
    // Nobody listens any more.
    let (progress, events) = mpsc::channel(64);
    drop(events);
    let error = models.pull("tiny", progress).await.unwrap_err();
    assert!(error.message.contains("cancelled"), "{error}");
}

#[tokio::test]
async fn two_may_want_the_same_at_once() {
    let home = Home::new();
    let models = home.with_catalog().await;
    let pull = async || {
        let (progress, _events) = mpsc::channel(64);
        models.pull("tiny", progress).await.unwrap()
    };
    let (one, two) = tokio::join!(pull(), pull());
    assert_eq!(one, two);
    assert_eq!(answer(&models.lease("tiny", None).await.unwrap()).await, ANSWER);
}

#[tokio::test]
async fn a_model_that_will_not_fit_is_told_of_before_it_is_fetched() {
    let home = Home::new();
    let mut options = options();
    options.memory = Some(1 << 20);
    let catalog = "[models.huge]\ntitle = \"Huge\"\nsize = 3000000\n\
                   sources = [\"http://127.0.0.1:1/huge.gguf\"]\n";
    let models = Models::new(home.store(catalog), options).unwrap();
    let (progress, mut events) = mpsc::channel(64);
    let error = models.pull("huge", progress).await.unwrap_err();
    assert_eq!(error.kind, Kind::Upstream, "{error}");
    let Some(Pulling::Note { text }) = events.recv().await else { panic!("nothing was told") };
    assert!(text.contains("3 MiB") && text.contains("1 MiB"), "{text}");
}
