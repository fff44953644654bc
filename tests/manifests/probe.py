"""The script of the manifests' tests: says which task it is, its settings and its arguments."""

import json
import sys

from tfdist.cluster import Cluster
from tfdist.config import Config

print(
    json.dumps(
        {
            "tf_config": json.loads(Cluster.resolve().to_tf_config()),
            "settings": {name: item.value for name, item in Config.resolve().given().items()},
            "arguments": sys.argv[1:],
        }
    )
)
