"""Run by an interpreter that has hpp-python, with a job in JSON on standard input; writes what the original says in JSON.

Not a test and not imported: hpp-python pins another Pinocchio than the tests use.
"""

import json
import sys

import numpy as np
import pyhpp.constraints
import pyhpp.manipulation.urdf
from pinocchio import SE3, StdVec_Bool
from pyhpp.manipulation import Device, Graph, Problem
from pyhpp.pinocchio import LiegroupElement


def evaluate(function, configurations):
    rows = []
    for q in configurations:
        element = LiegroupElement(function.outputSpace())
        function.value(element, np.array(q))
        rows.append([np.asarray(element.vector()).tolist(), np.asarray(function.J(np.array(q))).tolist()])
    return rows


def frame(matrix):
    return SE3(np.array(matrix))


def main():
    job = json.load(sys.stdin)
    device = Device("robot")
    for body in job["bodies"]:
        pyhpp.manipulation.urdf.loadModelFromString(
            device, 0, body["name"], "freeflyer", body["urdf"], body["srdf"], SE3.Identity()
        )
    graph = Graph("graph", device, Problem(device))
    made = graph.createPlacementConstraint("placement", job["objects"], job["floors"], job["margin"])
    result = {
        "contact": evaluate(made[0].function(), job["q"]),
        "complement": evaluate(made[1].function(), job["q"]),
    }
    for kind in ("Position", "Orientation", "Transformation"):
        mask = StdVec_Bool()
        for _ in range(6 if kind == "Transformation" else 3):
            mask.append(True)
        one, two = frame(job["frame1"]), frame(job["frame2"])
        absolute = getattr(pyhpp.constraints, kind)(kind, device, 1, two, one, mask)
        relative = getattr(pyhpp.constraints, f"Relative{kind}")(kind, device, 1, 2, one, two, mask)
        result[kind] = evaluate(absolute, job["q"])
        result[f"Relative{kind}"] = evaluate(relative, job["q"])
    json.dump(result, sys.stdout)


main()
