#!/usr/bin/env python3
"""Checks packaging/kubernetes: each manifest against the schemas of Kubernetes, the manifests
against each other, and the configuration with a cleave-server that serves with it. Needs the
package kubernetes-validate: scripts/test_kubernetes.sh."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "packaging/kubernetes"
MARGIN_SECONDS = 5  # the server exits within 1.5 s after limits.drain_seconds


def manifests():
    return [(file.name, manifest) for file in sorted(FOLDER.glob("*.yaml")) for manifest in yaml.safe_load_all(file.read_text())]


class Kubernetes(unittest.TestCase):
    def setUp(self):
        self.by_name = {(manifest["kind"], manifest["metadata"]["name"]): manifest for _, manifest in manifests()}
        self.pod = self.by_name["StatefulSet", "cleave"]["spec"]["template"]
        self.server = self.pod["spec"]["containers"][0]
        self.config_text = self.by_name["ConfigMap", "cleave"]["data"]["server.yaml"]
        self.config = yaml.safe_load(self.config_text)

    def test_schemas(self):
        for name, manifest in manifests():
            with self.subTest(file=name, kind=manifest["kind"]):
                kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)

    def test_selectors_match_the_pods(self):
        labels = self.pod["metadata"]["labels"].items()
        pod_name = "statefulset.kubernetes.io/pod-name"  # a label that Kubernetes adds to each pod
        for (kind, name), manifest in self.by_name.items():
            spec = manifest.get("spec", {})
            selector = spec.get("podSelector") or spec.get("selector") or {}
            selected = {label: value for label, value in selector.get("matchLabels", selector).items() if label != pod_name}
            with self.subTest(kind=kind, name=name):
                self.assertLessEqual(selected.items(), labels)
                self.assertTrue(selected or kind == "ConfigMap")
        self.assertIn(("Service", self.by_name["StatefulSet", "cleave"]["spec"]["serviceName"]), self.by_name)

    def test_ports_are_those_of_the_configuration(self):
        ports = {port["name"]: port["containerPort"] for port in self.server["ports"]}
        self.assertEqual(ports["cleave"], self.config["listen"]["port"])
        self.assertEqual(str(ports["metrics"]), self.config["metrics"]["listen"].rpartition(":")[2])
        self.assertEqual(self.pod["metadata"]["annotations"]["prometheus.io/port"], str(ports["metrics"]))
        for (kind, name), manifest in self.by_name.items():
            for port in manifest["spec"]["ports"] if kind == "Service" else []:
                self.assertEqual(port["port"], ports[port["targetPort"]], name)

    def test_paths_are_mounted(self):
        mounted = {mount["mountPath"] for mount in self.server["volumeMounts"]}
        for path in (self.config["tls"]["folder"], self.config["store"]):
            self.assertIn(path, mounted)
        volumes = {volume["name"] for volume in self.pod["spec"]["volumes"]} | {
            claim["metadata"]["name"] for claim in self.by_name["StatefulSet", "cleave"]["spec"]["volumeClaimTemplates"]}  # fmt: skip
        for container in self.pod["spec"]["initContainers"] + self.pod["spec"]["containers"]:
            self.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, volumes)

    def test_the_server_has_time_to_drain(self):
        drain = self.config["limits"]["drain_seconds"]
        self.assertGreaterEqual(self.pod["spec"]["terminationGracePeriodSeconds"], drain + MARGIN_SECONDS)

    def test_containers_have_no_privileges(self):
        self.assertTrue(self.pod["spec"]["securityContext"]["runAsNonRoot"])
        self.assertFalse(self.pod["spec"]["automountServiceAccountToken"])
        for container in self.pod["spec"]["initContainers"] + self.pod["spec"]["containers"]:
            context = container["securityContext"]
            self.assertTrue(context["readOnlyRootFilesystem"])
            self.assertFalse(context["allowPrivilegeEscalation"])
            self.assertEqual(context["capabilities"]["drop"], ["ALL"])

    def start(self, folder):
        """A server with the ConfigMap's configuration, on other addresses and folders."""
        programs = pathlib.Path(os.environ["PROGRAMS"])
        (folder / "server.yaml").write_text(self.config_text)
        subprocess.run([programs / "cleave-server", "certs", "init", "--folder", folder / "certs"], check=True, stdout=subprocess.DEVNULL)
        settings = {"listen.address": "127.0.0.1", "listen.port": 0, "tls.folder": folder / "certs", "store": folder / "store",
                    "status.socket": folder / "status/socket", "metrics.listen": "127.0.0.1:0"}  # fmt: skip
        overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return subprocess.Popen([programs / "cleave-server", "serve", "--config", folder / "server.yaml", *overrides],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip

    def test_the_server_accepts_the_configuration_and_needs_no_more_memory_than_the_limit(self):
        with tempfile.TemporaryDirectory() as folder, self.start(pathlib.Path(folder)) as server:
            line = server.stdout.readline()
            server.terminate()
            _, log = server.communicate(timeout=60)
            self.assertIn("cleave-server listens on", line, log)
            self.assertEqual(server.returncode, 0, log)
        needed = int(re.search(r"(\d+) MiB of memory at most", log)[1])
        limit = self.server["resources"]["limits"]["memory"]
        self.assertRegex(limit, r"^\d+Gi$")
        self.assertLessEqual(needed, 1024 * int(limit.removesuffix("Gi")))


if __name__ == "__main__":
    unittest.main()
